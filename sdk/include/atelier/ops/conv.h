// Convolution on a weight handle.
#pragma once

#include "atelier/weight.h"

namespace atelier::ops {

struct ConvOptions {
  int64_t stride = 1;   // on H and W
  int64_t padding = 0;  // zeros on each side of H and W
};

// 2-D convolution. x: [B, in, H, W]; weight [out, in, kh, kw], or [out, in, kt, kh, kw], of which
// the last temporal slice is used: a causal 3-D convolution of a single frame is that. bias [out]
// may be null. On the CPU channels-last tensors are fastest. The slice of a frozen weight, and on
// the CPU its channels-last copy, is made once and kept beside the handle's version.
//
// Returns [B, out, H', W'], channels-last on the CPU.
ATELIER_API at::Tensor conv2d(const at::Tensor& x, const WeightPtr& weight, const WeightPtr& bias,
                              ConvOptions options);

}  // namespace atelier::ops
