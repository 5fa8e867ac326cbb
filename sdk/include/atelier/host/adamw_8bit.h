// A step of AdamW with moments of 8 bits, in one pass over the memory of a parameter.
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier::ops {

// A moment as codes: places in a sorted map of 256 values, which blocks of 256 numbers scale by
// their largest magnitude. All on the parameter's device.
struct MomentCodes {
  at::Tensor codes;   // uint8, one for each number
  at::Tensor absmax;  // float32 [ceil(numel / 256)]
  // The map: its values, and the borders halfway between them, the last infinite.
  at::Tensor values, borders;  // float32 [256]
  // By the upper 16 bits of a float: the code of the least float that begins with them. No two
  // borders lie between floats that begin alike.
  at::Tensor first_codes;  // uint8 [65536]
};

// What a step reads, all of it contiguous, and what it changes: the leaf, its master and the codes.
struct AdamW8BitStep {
  at::Tensor leaf;      // float32, bfloat16 or float16
  at::Tensor gradient;  // of the leaf's dtype or float32
  // float32: it is moved, and the leaf is its rounding. Undefined: the leaf is moved; one of 16
  // bits is rounded up or down at random.
  at::Tensor master;
  MomentCodes exp_avg, exp_avg_sq;
  // Scalars of float32 on the device: what the gradient is divided by, and whether nothing changes.
  at::Tensor grad_scale, is_skipped;
  // float32 [2] on the device: the learning rate over the first moment's bias correction, and the
  // root of the second one's.
  at::Tensor corrections;
  double beta1 = 0, beta2 = 0, eps = 0;
  double decay = 1;  // what the weight is multiplied with first
  // The random bits: Philox's of the key and the counter {place / 8, parameter, step, the
  // place's upper half}, 16 for each number. first: the leaf's first place, a multiple of 8.
  std::array<uint32_t, 2> key = {};
  uint32_t parameter = 0, step = 0;
  uint64_t first = 0;
};

// Whether the device of `leaf` has a kernel of it that may run as things stand.
ATELIER_API bool has_adamw_8bit(const at::Tensor& leaf);
// Queues it there; has_adamw_8bit() holds.
ATELIER_API void adamw_8bit(const AdamW8BitStep& step);

}  // namespace atelier::ops
