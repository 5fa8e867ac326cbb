// The norm of groups of channels, by kernels for images whose channels lie side by side.
#pragma once

#include "atelier/segments.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

// They stand in for LibTorch's. rows: [N, C], the pixels of images of one size; weight and bias of
// any dtype.
struct GroupNormKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& rows, const Tensor& weight, const Tensor& bias,
                  const Segments& images, int64_t groups, double eps, bool silu, Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& rows, const Tensor& weight, const Tensor& bias,
                   const Segments& images, int64_t groups, double eps, bool silu, Tensor& grad_rows,
                   Tensor& grad_weight, Tensor& grad_bias);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<GroupNormKernels> group_norm_kernels;

}  // namespace atelier::ops
