#include "host/media/pixels.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "host/media/png.h"

namespace atelier::media {

at::Tensor to_pixels(const Image& image) {
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(image.rgb.data()),
                                         {image.height, image.width, 3}, at::kByte);
  return bytes.permute({2, 0, 1}).to(at::kFloat).contiguous().div_(255.0).mul_(2.0).sub_(1.0);
}

at::Tensor to_mask(const Image& image) {
  at::Tensor mask = at::empty({1, image.height, image.width}, at::kFloat);
  float* out = mask.mutable_data_ptr<float>();
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    const uint8_t* rgb = image.rgb.data() + i;
    const uint32_t gray = (rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16;
    *out++ = static_cast<float>(gray) / 255.0F;
  }
  return mask;
}

Image to_image(const at::Tensor& pixels) {
  TORCH_CHECK(pixels.dim() == 3 && (pixels.size(0) == 3 || pixels.size(0) == 1),
              "pixels are [3, H, W] or [1, H, W]");
  const at::Tensor values = pixels.detach().to(at::kCPU, at::kFloat);
  if (at::isnan(values).any().item<bool>()) {
    throw Error(ErrorCode::kNumerics, "the image holds values that are not numbers",
                "try --dtype float32");
  }
  const at::Tensor bytes = values.div(2.0).add_(0.5).clamp_(0.0, 1.0).mul_(255.0).round_();
  Image image(static_cast<int>(pixels.size(2)), static_cast<int>(pixels.size(1)));
  at::from_blob(image.rgb.data(), {image.height, image.width, 3}, at::kByte)
      .copy_(bytes.permute({1, 2, 0}));
  return image;
}

std::string png_of(const at::Tensor& pixels, const Text& text) {
  const Image image = to_image(pixels.narrow(0, 0, 3));
  if (pixels.size(0) == 3) return encode_png(image, text);
  const Image alpha = to_image(pixels.narrow(0, 3, 1));
  return encode_png(image, text, &alpha);
}

}  // namespace atelier::media
