// Functions of one value that the kernels share.
#pragma once

#include <cmath>

#include "ops/cuda/packs.h"

namespace atelier::ops::cuda {

// a * b, which no later sum takes in.
ATELIER_LANE float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

// 1 / v within 2 units in the last place; 0 for what is larger than 2^126.
ATELIER_LANE float reciprocal(float v) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, v);
#else
  return 1.0f / v;
#endif
}

ATELIER_LANE float sigmoid(float v) {
  return reciprocal(1.0f + expf(-v));
}

// The derivative of v * sigmoid(v), where s is sigmoid(v).
ATELIER_LANE float silu_slope(float v, float s) {
  return s * (1.0f + v * (1.0f - s));
}

// GELU is v * sigmoid(gelu_argument(v)): 2 sqrt(2 / pi) (v + 0.044715 v³).
ATELIER_LANE float gelu_argument(float v) {
  return 1.5957691216057308f * (v + 0.044715f * v * v * v);
}

}  // namespace atelier::ops::cuda
