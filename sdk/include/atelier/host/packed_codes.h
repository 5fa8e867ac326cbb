// Weights that rest as blocks of small codes, drawn by a kernel of their device.
#pragma once

#include <ATen/core/Tensor.h>

#include "atelier/export.h"
#include "atelier/host/packing.h"

namespace atelier::ops {

// Blocks of GGUF, or codes of nf4 or fp4 in the order of their values.
struct PackedCodes {
  Packing packing = Packing::kNf4;
  at::Tensor codes;  // uint8; of nf4 and fp4 two in a byte, the first in the high bits
  // Only nf4 and fp4 have these.
  at::Tensor values = {};  // of the 16 codes, float32
  at::Tensor scales = {};  // float32, one for each `block` values; the last block may be shorter
  int64_t block = 0;
};

// Whether the device that has these codes draws them in `dtype` by a kernel, as things stand.
// `values` and `scales` are not looked at.
ATELIER_API bool has_kernel_for(const PackedCodes& codes, at::ScalarType dtype);

// Puts their values into `out`, a contiguous tensor on their device, for which has_kernel_for()
// held: computed in float32, with a rounding behind each operation, and rounded once.
ATELIER_API void draw_packed_codes(const PackedCodes& codes, at::Tensor& out);

}  // namespace atelier::ops
