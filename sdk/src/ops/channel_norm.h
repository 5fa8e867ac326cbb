// The norm of a pixel's channels.
#pragma once

#include "ops/kernel_choice.h"

namespace atelier::ops {

// x: channels last, [..., C]
struct ChannelNormKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& gamma, bool silu, Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& x, const Tensor& gamma, bool silu,
                   Tensor& grad_x, Tensor& grad_gamma);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<ChannelNormKernels> channel_norm_kernels;

}  // namespace atelier::ops
