// Norms by the root of the mean square: with a weight, modulated by sample, or added to a residual.
#pragma once

#include "atelier/segments.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

// Weights have the dtype of x. `scale` and `gate` of these may be undefined.
struct RmsNormKernels {
  using Tensor = at::Tensor;

  // x: [..., D]
  void (*forward)(const Tensor& x, const Tensor& weight, double eps, Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                   Tensor& grad_x, Tensor& grad_weight);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<RmsNormKernels> rms_norm_kernels;

struct RmsNormModulateKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& scale, const Segments& rows,
                  double eps, Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& x, const Tensor& weight, const Tensor& scale,
                   const Segments& rows, double eps, Tensor& grad_x, Tensor& grad_weight,
                   Tensor& grad_scale);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<RmsNormModulateKernels> rms_norm_modulate_kernels;

struct RmsGateResidualKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                  const Segments& rows, double eps, Tensor& out);
  // The gradient of x is `grad`.
  void (*backward)(const Tensor& grad, const Tensor& y, const Tensor& weight, const Tensor& gate,
                   const Segments& rows, double eps, Tensor& grad_y, Tensor& grad_weight,
                   Tensor& grad_gate);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<RmsGateResidualKernels> rms_gate_residual_kernels;

// Gradients of a gated norm's inputs and of the norm's behind it.
struct RmsGateResidualNormModulateGradients {
  at::Tensor x, y, weight, gate, next_weight, scale;
};

// `sum`: what rms_gate_residual() gives.
struct RmsGateResidualNormModulateKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                  const Tensor& next_weight, const Tensor& scale, const Segments& rows, double eps,
                  Tensor& sum, Tensor& out);
  // `grad_sum` may be undefined.
  void (*backward)(const Tensor& grad, const Tensor& grad_sum, const Tensor& x, const Tensor& y,
                   const Tensor& weight, const Tensor& gate, const Tensor& next_weight,
                   const Tensor& scale, const Segments& rows, double eps,
                   RmsGateResidualNormModulateGradients& to);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<RmsGateResidualNormModulateKernels>
    rms_gate_residual_norm_modulate_kernels;

}  // namespace atelier::ops
