#include "host/media/pixels.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier::media {

at::Tensor to_pixels(const Picture& picture) {
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(picture.rgb.data()),
                                         {picture.height, picture.width, 3}, at::kByte);
  return bytes.permute({2, 0, 1}).to(at::kFloat).contiguous().div_(255.0).mul_(2.0).sub_(1.0);
}

at::Tensor to_mask(const Picture& picture) {
  at::Tensor mask = at::empty({1, picture.height, picture.width}, at::kFloat);
  float* out = mask.mutable_data_ptr<float>();
  for (size_t i = 0; i < picture.rgb.size(); i += 3) {
    const uint8_t* rgb = picture.rgb.data() + i;
    const uint32_t gray = (rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16;
    *out++ = static_cast<float>(gray) / 255.0F;
  }
  return mask;
}

Picture to_picture(const at::Tensor& pixels) {
  TORCH_CHECK(pixels.dim() == 3 && pixels.size(0) == 3, "pixels are [3, H, W]");
  const at::Tensor values = pixels.detach().to(at::kCPU, at::kFloat);
  if (at::isnan(values).any().item<bool>()) {
    throw Error(ErrorCode::kNumerics, "the picture holds values that are not numbers",
                "try --dtype float32");
  }
  const at::Tensor bytes = values.div(2.0).add_(0.5).clamp_(0.0, 1.0).mul_(255.0).round_();
  Picture picture(static_cast<int>(pixels.size(2)), static_cast<int>(pixels.size(1)));
  at::from_blob(picture.rgb.data(), {picture.height, picture.width, 3}, at::kByte)
      .copy_(bytes.permute({1, 2, 0}));
  return picture;
}

}  // namespace atelier::media
