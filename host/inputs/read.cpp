#include "host/inputs/read.h"

#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/media/clip.h"
#include "host/media/decode.h"
#include "host/media/pixels.h"
#include "host/media/resize.h"

namespace atelier::inputs {
namespace {

using media::Image;

Image fitted(const Image& image, InputFit fit, const MediaTarget& target) {
  const int height = static_cast<int>(target.height), width = static_cast<int>(target.width);
  if (fit == InputFit::kAsIs) return image;
  if (fit == InputFit::kStretch)
    return media::resize(image, width, height, media::Filter::kBicubic);
  return media::crop_and_resize(image, width, height);
}

// Returns [4, H, W]; an image without transparency is opaque.
at::Tensor read_rgba(const InputSpec& input, const std::string& path, const MediaTarget& target) {
  auto [image, alpha] = media::decode_with_alpha(read_image_file(path), files::display_path(path),
                                                 {.over_white = false});
  if (alpha.rgb.empty()) {
    const at::Tensor pixels = media::to_pixels(fitted(image, input.fit, target));
    return at::cat({pixels, at::ones_like(pixels.narrow(0, 0, 1))});
  }
  const int height = static_cast<int>(target.height), width = static_cast<int>(target.width);
  if (input.fit == InputFit::kStretch)
    media::resize_with_alpha(image, alpha, width, height, media::Filter::kBicubic);
  if (input.fit == InputFit::kCrop) {
    const auto [over_width, over_height] = media::covering_size(image, width, height);
    media::resize_with_alpha(image, alpha, over_width, over_height, media::Filter::kBilinear);
    image = media::center_crop(image, width, height);
    alpha = media::center_crop(alpha, width, height);
  }
  return at::cat({media::to_pixels(image), media::to_pixels(alpha).narrow(0, 0, 1)});
}

// One frame of a clip as its tensor has it: [C, H, W].
at::Tensor frame_of(const InputSpec& input, const Image& image) {
  if (input.kind == InputKind::kVideoMask) return media::to_mask(image);
  return at::from_blob(const_cast<uint8_t*>(image.rgb.data()), {image.height, image.width, 3},
                       at::kByte)
      .permute({2, 0, 1});
}

at::Tensor read_one(const InputSpec& input, const std::string& path, const MediaTarget& target) {
  if (input.channels == 4) return read_rgba(input, path, target);
  const Image image = fitted(media::decode_image(read_image_file(path), files::display_path(path)),
                             input.fit, target);
  return input.kind == InputKind::kMask ? media::to_mask(image) : media::to_pixels(image);
}

}  // namespace

InputValue shapes_of(const InputSpec& input, std::span<const std::string> paths,
                     const std::optional<MediaTarget>& target) {
  const bool is_mask = input.kind == InputKind::kMask || input.kind == InputKind::kVideoMask;
  const int64_t channels = is_mask ? 1 : input.channels;
  std::vector<at::Tensor> images;
  for (const std::string& path : paths) {
    const ImageFile file = check_file(input.kind, path, /*decode_all=*/false);
    if (file.error) throw *file.error;
    const bool is_fitted = target && input.fit != InputFit::kAsIs;
    const int64_t height = is_fitted ? target->height : file.info.height,
                  width = is_fitted ? target->width : file.info.width;
    std::vector<int64_t> shape = {channels, height, width};
    if (is_clip(input.kind))
      shape.insert(shape.begin() + 1, target      ? target->frames
                                      : file.clip ? file.clip->frames()
                                                  : 1);
    const at::ScalarType dtype = input.kind == InputKind::kVideo ? at::kByte : at::kFloat;
    images.push_back(at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype)));
  }
  if (!is_list(input)) return images.front();
  return images;
}

InputValue read_files(const InputSpec& input, std::span<const std::string> paths,
                      const MediaTarget& target) {
  if (!is_image(input.kind))
    throw Error(ErrorCode::kUnsupported, "input " + formats::quote_and_escape(input.name) + ": " +
                                             std::string(unread_files(input.kind)) +
                                             " cannot be read yet");
  if (!is_list(input)) return read_one(input, paths.front(), target);
  std::vector<at::Tensor> images;
  for (const std::string& path : paths) images.push_back(read_one(input, path, target));
  return images;
}

at::Tensor read_clip(const InputSpec& input, const std::string& path,
                     std::span<const int64_t> frames, const MediaTarget& target) {
  at::Tensor clip;
  int64_t next = 0;
  media::open_clip(path)->read(frames, [&](const Image& decoded) {
    const Image image = fitted(decoded, input.fit, target);
    const at::Tensor frame = frame_of(input, image);
    if (!clip.defined())
      clip = at::empty({frame.size(0), std::ssize(frames), frame.size(1), frame.size(2)},
                       frame.scalar_type());
    clip.select(1, next++).copy_(frame);
  });
  return clip;
}

ImageWithMask read_with_mask(const InputSpec& input, const std::string& path,
                             const MediaTarget& target) {
  const auto [image, alpha] =
      media::decode_with_alpha(read_image_file(path), files::display_path(path));
  ImageWithMask result;
  result.image = input.channels == 4 ? read_rgba(input, path, target)
                                     : media::to_pixels(fitted(image, input.fit, target));
  if (!alpha.rgb.empty()) result.mask = media::to_mask(fitted(alpha, input.fit, target));
  return result;
}

InputValue when_absent(const InputSpec& input, const at::Tensor& target) {
  at::Tensor frame = target;
  if (target.dim() == 4)
    frame = target.select(1, input.when_absent == WhenAbsent::kFirstFrame ? 0 : -1);
  if (!is_list(input)) return frame;
  return std::vector<at::Tensor>{frame};
}

}  // namespace atelier::inputs
