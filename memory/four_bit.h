// What bitsandbytes makes of weights: 4-bit codes in blocks, whose scales are codes as well.
#pragma once

#include <ATen/core/Tensor.h>

#include "memory/packed.h"

namespace atelier::memory {

inline constexpr int64_t kFourBitBlock = 64, kScaleBlock = 256;

// The values of the 16 codes of nf4 or fp4, float32, on the CPU.
at::Tensor four_bit_values(Packing packing);

// The codes that bitsandbytes makes of a tensor: nf4 or fp4 in blocks of kFourBitBlock, the scales
// of those as codes of 8 bits in blocks of kScaleBlock. Works on the weight's device, in parts.
// Throws Error{kNumerics} when a value is not finite.
Packed quantize_4bit(const at::Tensor& weight, Packing packing);

// What that gives of a tensor of this shape, without values: on the meta device.
Packed outline_4bit(at::IntArrayRef shape, Packing packing);

}  // namespace atelier::memory
