// GELU with the tanh approximation.
#pragma once

#include "atelier/host/weight_state.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

struct GeluTanhKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& x, Tensor& grad_x);
  KernelLimits limits;
  // The forward pass of [N, D] and codes of `out`, of rows of no more bytes than
  // `widest_codes_bytes`.
  void (*forward_codes)(const Tensor& x, Tensor& out, RowCodes& codes) = nullptr;
  int64_t widest_codes_bytes = 0;
};
extern ATELIER_API KernelTable<GeluTanhKernels> gelu_tanh_kernels;

}  // namespace atelier::ops
