// Images to tensors and back.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "host/media/image.h"
#include "host/media/text.h"

namespace atelier::media {

// Returns float32 [3, H, W] in [-1, 1] on the CPU.
at::Tensor to_pixels(const Image& image);

// Returns float32 [1, H, W] in [0, 1] on the CPU: the brightness of each pixel (ITU-R 601), rounded
// to one of 256 levels as Pillow's convert("L") rounds it.
at::Tensor to_mask(const Image& image);

// pixels: float32 [3, H, W], or [1, H, W] of gray; values outside [-1, 1] are clamped, and the rest
// rounds half to even. Throws Error{kNumerics} when a value is not a number.
Image to_image(const at::Tensor& pixels);

// The bytes of a PNG file of pixels, float32 [3, H, W] or, with transparency, [4, H, W]. Throws as
// to_image() and encode_png().
std::string png_of(const at::Tensor& pixels, const Text& text = {});

}  // namespace atelier::media
