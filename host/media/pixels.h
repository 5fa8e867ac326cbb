// Images to tensors and back.
#pragma once

#include <ATen/core/Tensor.h>

#include "host/media/image.h"

namespace atelier::media {

// Returns float32 [3, H, W] in [-1, 1] on the CPU.
at::Tensor to_pixels(const Image& image);

// Returns float32 [1, H, W] in [0, 1] on the CPU: the brightness of each pixel (ITU-R 601), rounded
// to one of 256 levels as Pillow's convert("L") rounds it.
at::Tensor to_mask(const Image& image);

// pixels: float32 [3, H, W]; values outside [-1, 1] are clamped, and the rest rounds half to even.
// Throws Error{kNumerics} when a value is not a number.
Image to_image(const at::Tensor& pixels);

}  // namespace atelier::media
