// Pictures of bytes, before they become what a model reads.
#pragma once

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier {

enum class ResizeFilter { kBox, kBilinear, kBicubic, kLanczos };

// Resizes to Pillow's bits.
//
// bytes_HWC: uint8 [H, W, 3] on the CPU, or without values (meta). Returns [height, width, 3],
// contiguous; the picture itself where it has that size already.
// Throws Error{kInvalidArgument} unless all sides are at least 1.
ATELIER_API at::Tensor resize_picture(const at::Tensor& bytes_HWC, int64_t height, int64_t width,
                                      ResizeFilter filter);

}  // namespace atelier
