#include "host/media/pixels.h"

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier::media {

at::Tensor to_pixels(const Picture& picture) {
  const at::Tensor bytes = at::from_blob(const_cast<uint8_t*>(picture.rgb.data()),
                                         {picture.height, picture.width, 3}, at::kByte);
  return bytes.permute({2, 0, 1}).to(at::kFloat).contiguous().div_(255.0).mul_(2.0).sub_(1.0);
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
