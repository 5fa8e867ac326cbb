// Shape letters: H and W height and width, N patches, h and w patches along each side.
#include "pictures.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/picture.h"

namespace qwen_image {

using atelier::Error;
using atelier::ErrorCode;
using atelier::ResizeFilter;

namespace {

constexpr int64_t kTokenPixels = kTokenPatches * kPatchPixels;
constexpr int64_t kMaxAspect = 200;

// Python's round(): half to even.
int64_t to_multiple(double side, int64_t multiple) {
  return static_cast<int64_t>(std::nearbyint(side / static_cast<double>(multiple))) * multiple;
}

bool is_too_long(const PictureSize& size) {
  const auto [shorter, longer] = std::minmax(size.height, size.width);
  return shorter < 1 || longer > kMaxAspect * shorter;
}

// [3, H, W] in [-1, 1] to bytes [H, W, 3] on the CPU, resized.
at::Tensor resized(const at::Tensor& image, const PictureSize& to) {
  const at::Tensor bytes =
      at::round((image.to(at::kFloat) + 1.0) * 127.5).to(at::kByte).permute({1, 2, 0});
  return atelier::resize_picture(bytes.is_meta() ? bytes : bytes.to(at::kCPU), to.height, to.width,
                                 ResizeFilter::kLanczos);
}

at::Tensor per_channel(const double (&values)[3], const at::Tensor& like) {
  return at::tensor(at::ArrayRef<double>(values), at::kDouble).to(like.options());
}

// Bytes [H, W, 3] to patches [N, 3 * 2 * 14 * 14].
at::Tensor patches(const at::Tensor& bytes_HWC, const PatchGrid& grid) {
  const at::Tensor levels = (bytes_HWC.to(at::kDouble) * kPixelScale).to(at::kFloat);
  const at::Tensor values =
      (levels - per_channel(kPixelMean, levels)) / per_channel(kPixelStd, levels);
  const at::Tensor cut =
      values.view({grid.token_rows(), 2, kPatchPixels, grid.token_columns(), 2, kPatchPixels, 3});
  return cut.permute({0, 3, 1, 4, 6, 2, 5})
      .unsqueeze(5)
      .expand({-1, -1, -1, -1, -1, kFrames, -1, -1})
      .reshape({grid.rows * grid.columns, 3 * kFrames * kPatchPixels * kPatchPixels});
}

}  // namespace

PictureSize size_of_area(int64_t area, const PictureSize& size) {
  const double ratio = static_cast<double>(size.width) / static_cast<double>(size.height);
  const double width = std::sqrt(static_cast<double>(area) * ratio), height = width / ratio;
  return {to_multiple(height, 32), to_multiple(width, 32)};
}

PictureSize vision_size(const PictureSize& size) {
  const auto height = static_cast<double>(size.height), width = static_cast<double>(size.width);
  const PictureSize nearest = {to_multiple(height, kTokenPixels), to_multiple(width, kTokenPixels)};
  const int64_t area = nearest.height * nearest.width;
  const auto scaled = [](double side, double (*round)(double)) {
    return static_cast<int64_t>(round(side / kTokenPixels)) * kTokenPixels;
  };
  if (area > kMaxPixels) {
    const double by = std::sqrt(height * width / static_cast<double>(kMaxPixels));
    return {std::max(kTokenPixels, scaled(height / by, std::floor)),
            std::max(kTokenPixels, scaled(width / by, std::floor))};
  }
  if (area < kMinPixels) {
    const double by = std::sqrt(static_cast<double>(kMinPixels) / (height * width));
    return {scaled(height * by, std::ceil), scaled(width * by, std::ceil)};
  }
  return nearest;
}

PictureSize PictureRules::for_vae(const PictureSize& size) const {
  if (resizes) return size_of_area(vae_area, size);
  return {size.height / 16 * 16, size.width / 16 * 16};
}

PictureSize PictureRules::for_vision(const PictureSize& size) const {
  return vision_area > 0 ? size_of_area(vision_area, size) : for_vae(size);
}

void PictureRules::check(const PictureSize& size) const {
  if (for_vae(size).height >= 1 && for_vae(size).width >= 1 && !is_too_long(for_vision(size)))
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "edit_image: a picture of " + std::to_string(size.width) + "x" +
                  std::to_string(size.height) + " pixels is too small or too long to be shown",
              "cut a piece out of it");
}

PictureSize size_of(const at::Tensor& image) {
  return {image.size(1), image.size(2)};
}

at::Tensor pixels_for_vae(const at::Tensor& image, const PictureRules& rules) {
  rules.check(size_of(image));
  const at::Tensor bytes = resized(image, rules.for_vae(size_of(image)));
  return bytes.to(image.device(), at::kFloat)
      .div_(255.0)
      .mul_(2.0)
      .sub_(1.0)
      .permute({2, 0, 1})
      .contiguous();
}

Patches patches_of(std::span<const at::Tensor> images, const PictureRules& rules) {
  Patches result;
  std::vector<at::Tensor> values;
  for (const at::Tensor& image : images) {
    rules.check(size_of(image));
    const PictureSize shown = rules.for_vision(size_of(image)), seen = vision_size(shown);
    result.grids.push_back({seen.height / kPatchPixels, seen.width / kPatchPixels});
    const at::Tensor bytes = atelier::resize_picture(resized(image, shown), seen.height, seen.width,
                                                     ResizeFilter::kBicubic);
    values.push_back(patches(bytes, result.grids.back()).to(image.device()));
  }
  result.values = at::cat(values);
  return result;
}

}  // namespace qwen_image
