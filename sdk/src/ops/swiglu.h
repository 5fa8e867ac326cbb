// silu(gate) * up.
#pragma once

#include "ops/kernel_choice.h"

namespace atelier::ops {

// [N, D]; of gate and up only the last axis need be dense.
struct SwigluKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& gate, const Tensor& up, Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& gate, const Tensor& up, Tensor& grad_gate,
                   Tensor& grad_up);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<SwigluKernels> swiglu_kernels;

}  // namespace atelier::ops
