// The host half of the group norm of images whose channels lie side by side.
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "atelier/segments.h"

namespace atelier::ops::cuda {

// See PointwiseKernels.
at::Tensor group_norm(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias,
                      const Segments& images, int64_t groups, double eps, bool silu);
std::array<at::Tensor, 3> group_norm_backward(const at::Tensor& grad, const at::Tensor& rows,
                                              const at::Tensor& weight, const at::Tensor& bias,
                                              const Segments& images, int64_t groups, double eps,
                                              bool silu, std::array<bool, 3> wanted);

}  // namespace atelier::ops::cuda
