#include "host/media/resize.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/report/text.h"

namespace atelier::media {
namespace {

// Python's round(): half to even, which is the default rounding mode.
int round_half_even(double x) {
  return static_cast<int>(std::nearbyint(x));
}

// Colors times opacity, rounded as Pillow's convert("RGBa").
Image premultiplied(const Image& image, const Image& alpha) {
  Image result = image;
  for (size_t i = 0; i < result.rgb.size(); ++i) {
    const unsigned t = static_cast<unsigned>(result.rgb[i]) * alpha.rgb[i] + 128;
    result.rgb[i] = static_cast<uint8_t>(((t >> 8) + t) >> 8);
  }
  return result;
}

}  // namespace

Image resize(const Image& image, int width, int height, Filter filter) {
  if (width == image.width && height == image.height && width > 0 && height > 0) return image;
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(image.rgb.data()),
                                         {image.height, image.width, 3}, at::kByte);
  const at::Tensor resized = resize_picture(bytes, height, width, filter);
  Image out(width, height);
  std::copy_n(resized.const_data_ptr<uint8_t>(), out.rgb.size(), out.rgb.data());
  return out;
}

Image center_crop(const Image& image, int width, int height) {
  if (width < 1 || height < 1 || width > image.width || height > image.height) {
    throw Error(ErrorCode::kInvalidArgument, "center_crop: cannot cut " +
                                                 report::size_text(height, width) + " out of " +
                                                 report::size_text(image.height, image.width));
  }
  const int left = round_half_even((image.width - width) / 2.0);
  const int top = round_half_even((image.height - height) / 2.0);
  Image out(width, height);
  for (int y = 0; y < height; ++y) {
    std::copy_n(image.row(top + y) + 3 * left, out.row_bytes(), out.row(y));
  }
  return out;
}

std::pair<int, int> covering_size(const Image& image, int width, int height) {
  const double scale = std::max(static_cast<double>(width) / image.width,
                                static_cast<double>(height) / image.height);
  return {round_half_even(image.width * scale), round_half_even(image.height * scale)};
}

Image crop_and_resize(const Image& image, int width, int height, Filter filter) {
  if (image.width == width && image.height == height) return image;
  const auto [scaled_width, scaled_height] = covering_size(image, width, height);
  return center_crop(resize(image, scaled_width, scaled_height, filter), width, height);
}

std::pair<int, int> size_within(int image_width, int image_height, int width, int height) {
  const int64_t w = image_width, h = image_height;
  if (w * height >= h * width)
    return {width, static_cast<int>(std::max(h * width / w, int64_t{1}))};
  return {static_cast<int>(std::max(w * height / h, int64_t{1})), height};
}

Image padded(const Image& image, int width, int height, int level) {
  Image out(width, height);
  std::ranges::fill(out.rgb, static_cast<uint8_t>(level));
  const int left = (width - image.width) / 2, top = (height - image.height) / 2;
  for (int y = 0; y < image.height; ++y)
    std::copy_n(image.row(y), image.row_bytes(), out.row(top + y) + 3 * left);
  return out;
}

void resize_with_alpha(Image& image, Image& alpha, int width, int height, Filter filter) {
  if (image.width == width && image.height == height) return;
  image = resize(premultiplied(image, alpha), width, height, filter);
  alpha = resize(alpha, width, height, filter);
  for (size_t i = 0; i < image.rgb.size(); ++i) {
    const int opacity = alpha.rgb[i];
    if (opacity != 0)
      image.rgb[i] = static_cast<uint8_t>(std::min(255, 255 * image.rgb[i] / opacity));
  }
}

}  // namespace atelier::media
