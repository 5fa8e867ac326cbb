#include "host/inputs/read.h"

#include <algorithm>
#include <set>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/inputs/fit.h"
#include "host/inputs/image_file.h"
#include "host/inputs/parse.h"
#include "host/media/clip.h"
#include "host/media/decode.h"
#include "host/media/pixels.h"
#include "host/media/sound.h"

namespace atelier::inputs {
namespace {

using media::Image;

// Returns [4, H, W]; an image without transparency is opaque.
at::Tensor read_rgba(const InputSpec& input, const std::string& path, const MediaTarget& target) {
  auto [image, alpha] = media::decode_with_alpha(read_image_file(path), files::display_path(path),
                                                 {.over_white = false});
  if (alpha.rgb.empty()) {
    const at::Tensor pixels = media::to_pixels(fitted(image, input, target));
    return at::cat({pixels, at::ones_like(pixels.narrow(0, 0, 1))});
  }
  fit_with_alpha(image, alpha, input, target);
  return at::cat({media::to_pixels(image), media::to_pixels(alpha).narrow(0, 0, 1)});
}

// One frame of a clip as its tensor has it: [C, H, W].
at::Tensor frame_of(const InputSpec& input, const Image& image) {
  if (is_mask(input.kind)) return media::to_mask(image);
  return at::from_blob(const_cast<uint8_t*>(image.rgb.data()), {image.height, image.width, 3},
                       at::kByte)
      .permute({2, 0, 1});
}

at::Tensor read_one(const InputSpec& input, const std::string& path, const MediaTarget& target) {
  if (input.channels == 4) return read_rgba(input, path, target);
  const Image image =
      fitted(media::decode_image(read_image_file(path), files::display_path(path)), input, target);
  return is_mask(input.kind) ? media::to_mask(image) : media::to_pixels(image);
}

bool has_filler(std::span<const int64_t> frames) {
  return std::ranges::find(frames, kFiller) != frames.end();
}

// What a clip with such frames is made of.
at::ScalarType dtype_of(const InputSpec& input, std::span<const int64_t> frames) {
  const bool is_gray = input.tail == Tail::kZero && has_filler(frames);
  return is_mask(input.kind) || is_gray ? at::kFloat : at::kByte;
}

// Decoded frames [C, T, H, W] and behind them one that fills.
at::Tensor with_filler(const at::Tensor& clip, at::ScalarType dtype) {
  at::Tensor frames = clip;
  if (dtype != clip.scalar_type()) frames = clip.to(dtype).div_(255.0).mul_(2.0).sub_(1.0);
  return at::cat({frames, at::zeros_like(frames.narrow(1, 0, 1))}, 1);
}

ImageFile checked(const InputSpec& input, const std::string& path) {
  ImageFile file = check_file(input.kind, path, /*decode_all=*/false);
  if (file.error) throw *file.error;
  return file;
}

at::Tensor blank(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  return at::empty(shape, at::TensorOptions(at::kMeta).dtype(dtype));
}

// `made`: null where it is not known yet.
at::Tensor shape_of_sound(const InputSpec& input, const ImageFile& file, const Made* made) {
  const int64_t whole =
      media::samples_at_rate(file.sound->samples, file.sound->sample_rate, input.sample_rate);
  const SoundPart part = made == nullptr ? SoundPart() : part_beside(input, *made);
  return blank({input.channels, part.count.value_or(whole)}, at::kFloat);
}

at::Tensor shape_of(const InputSpec& input, const ImageFile& file, const Made* made, double fps) {
  const int64_t channels = is_mask(input.kind) ? 1 : input.channels;
  Sides sides = {file.info.height, file.info.width};
  if (made != nullptr) sides = fitted_sides(input, sides, made->target);
  if (!is_clip(input.kind)) return blank({channels, sides.height, sides.width}, at::kFloat);
  const std::vector<int64_t> frames = made != nullptr ? read_frames(input, clip_of(file), *made)
                                                      : seen_frames(input, clip_of(file), fps);
  return blank({channels, std::ssize(frames), sides.height, sides.width}, dtype_of(input, frames));
}

InputValue shapes_of(const InputSpec& input, std::span<const std::string> paths, const Made* made,
                     double fps) {
  std::vector<at::Tensor> shapes;
  for (const std::string& path : paths) {
    const ImageFile file = checked(input, path);
    shapes.push_back(is_sound(input.kind) ? shape_of_sound(input, file, made)
                                          : shape_of(input, file, made, fps));
  }
  if (!is_list(input)) return shapes.front();
  return shapes;
}

}  // namespace

InputValue shapes_of(const InputSpec& input, std::span<const std::string> paths, const Made& made) {
  return shapes_of(input, paths, &made, made.fps);
}

InputValue own_shapes_of(const InputSpec& input, std::span<const std::string> paths, double fps) {
  return shapes_of(input, paths, nullptr, fps);
}

InputValue read_images(const InputSpec& input, std::span<const std::string> paths,
                       const MediaTarget& target) {
  if (!is_list(input)) return read_one(input, paths.front(), target);
  std::vector<at::Tensor> images;
  for (const std::string& path : paths) images.push_back(read_one(input, path, target));
  return images;
}

at::Tensor read_clip(const InputSpec& input, const std::string& path, const PickFrames& pick,
                     const MediaTarget& target) {
  const std::unique_ptr<media::ClipReader> reader = media::open_clip(path);
  const std::vector<int64_t> frames = pick(reader->info());
  // Each frame is decoded once, in the order of the file.
  std::set<int64_t> numbers(frames.begin(), frames.end());
  numbers.erase(kFiller);
  const std::vector<int64_t> decoded(numbers.begin(), numbers.end());
  at::Tensor clip;
  int64_t next = 0;
  reader->read(decoded, [&](const Image& whole) {
    const Image image = fitted(whole, input, target);
    const at::Tensor frame = frame_of(input, image);
    if (!clip.defined())
      clip = at::empty({frame.size(0), std::ssize(decoded), frame.size(1), frame.size(2)},
                       frame.scalar_type());
    clip.select(1, next++).copy_(frame);
  });
  if (frames == decoded) return clip;
  if (decoded.empty()) {  // all of it lies behind the end
    const media::ImageInfo size = {.width = reader->info().width, .height = reader->info().height};
    const media::ClipInfo& info = reader->info();
    const Sides sides = fitted_sides(input, {info.height, info.width}, target);
    return at::zeros(
        {is_mask(input.kind) ? 1 : input.channels, std::ssize(frames), sides.height, sides.width},
        dtype_of(input, frames));
  }
  if (has_filler(frames)) clip = with_filler(clip, dtype_of(input, frames));
  std::vector<int64_t> places;
  for (const int64_t frame : frames) {
    const auto place = std::ranges::lower_bound(decoded, frame) - decoded.begin();
    places.push_back(frame == kFiller ? std::ssize(decoded) : place);
  }
  return clip.index_select(1, at::tensor(places, at::kLong));
}

namespace {

// Throws where a sound is shorter than it has to be.
void require_length(const InputSpec& input, const std::string& path, int64_t samples,
                    int64_t wanted) {
  if (!is_too_short(input, samples, wanted)) return;
  throw Error(ErrorCode::kInvalidArgument,
              files::display_path(path) + ": " + shorter_text(input, samples, wanted),
              "give a longer sound");
}

}  // namespace

at::Tensor read_sound(const InputSpec& input, const std::string& path, const SoundPart& part) {
  media::SoundRequest request = {.channels = static_cast<int>(input.channels),
                                 .sample_rate = static_cast<int>(input.sample_rate),
                                 .first = part.first};
  // What stands behind the end may be any part of the sound.
  const bool reads_part = part.count && input.tail != Tail::kMirror && input.tail != Tail::kRepeat;
  if (reads_part) request.count = *part.count;
  if (!reads_part) request.first = 0;
  const media::Sound sound = media::read_sound(path, request);
  const at::Tensor values =
      at::tensor(sound.values, at::kFloat).view({sound.channels, sound.samples()});
  if (!part.count) return values.slice(1, part.first);
  const int64_t begin = part.first - request.first, end = begin + *part.count;
  if (input.tail == Tail::kRefuse) require_length(input, path, values.size(1), end);
  const Tail tail = input.tail == Tail::kRefuse ? Tail::kZero : input.tail;
  std::vector<int64_t> places = with_tail(values.size(1), end, tail);
  places.erase(places.begin(), places.begin() + begin);
  if (!has_filler(places) && std::ssize(places) == values.size(1)) return values;
  std::ranges::replace(places, kFiller, values.size(1));
  const double filler = input.tail == Tail::kMinusOne ? -1.0 : 0.0;
  return at::cat({values, at::full({values.size(0), 1}, filler)}, 1)
      .index_select(1, at::tensor(places, at::kLong));
}

InputValue read_files(const InputSpec& input, std::span<const std::string> paths,
                      const Made& made) {
  if (is_sound(input.kind)) return read_sound(input, paths.front(), part_beside(input, made));
  if (!is_clip(input.kind)) return read_images(input, paths, made.target);
  return read_clip(
      input, paths.front(),
      [&](const media::ClipInfo& clip) { return read_frames(input, clip, made); }, made.target);
}

ImageWithMask read_with_mask(const InputSpec& input, const std::string& path,
                             const MediaTarget& target) {
  const auto [image, alpha] =
      media::decode_with_alpha(read_image_file(path), files::display_path(path));
  ImageWithMask result;
  result.image = input.channels == 4 ? read_rgba(input, path, target)
                                     : media::to_pixels(fitted(image, input, target));
  InputSpec mask = input;
  mask.kind = InputKind::kMask;
  if (!alpha.rgb.empty()) result.mask = media::to_mask(fitted(alpha, mask, target));
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
