// Tensors kept in 8 bits: blocks of 256 values, each scaled by its largest magnitude, as codes of a
// dynamic map (Dettmers, Lewis, Shleifer and Zettlemoyer 2022).
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "atelier/host/adamw_8bit.h"

namespace atelier::optim {

constexpr int64_t kQuantizedBlock = 256;
// Below this many values 8 bits are not worth it.
constexpr int64_t kLeastQuantized = 4096;

// Codes are places in a sorted map of 256 values: finest near zero, 1 the largest. A signed map
// lies in (-1, 1], an unsigned one in [0, 1].
struct Blockwise {
  at::Tensor codes;   // uint8, any shape
  at::Tensor absmax;  // float32 [ceil(numel / 256)]
  bool is_signed = true;
};

// Returns float32 of the codes' shape.
at::Tensor dequantize(const Blockwise& quantized);

// Puts `value`, contiguous float32 of as many elements, into `target`, rounded to the nearest
// codes; where the bool scalar `keeps` is true, `target` stays as it is.
void quantize(const at::Tensor& value, const at::Tensor& keeps, Blockwise& target);

// As the kernels of devices take it; shares storage.
ops::MomentCodes moment_codes(const Blockwise& quantized);

// Both with operators of LibTorch, which is what other devices than the CPU do.
at::Tensor dequantize_composed(const Blockwise& quantized);
void quantize_composed(const at::Tensor& value, const at::Tensor& keeps, Blockwise& target);

}  // namespace atelier::optim
