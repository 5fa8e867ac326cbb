// Norms by mean and deviation: with a weight and a bias, or modulated by sample.
#pragma once

#include "atelier/host/weight_state.h"
#include "atelier/segments.h"

#include "ops/kernel_choice.h"

namespace atelier::ops {

// x: [..., D]; weight and bias of any dtype.
struct LayerNormKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                  Tensor& out);
  void (*backward)(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                   Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias);
  KernelLimits limits;
};
extern ATELIER_API KernelTable<LayerNormKernels> layer_norm_kernels;

struct NormModulateKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& shift, const Tensor& scale, const Segments& rows,
                  double eps, Tensor& out);
  // `added`, when defined, is added to the gradient of x.
  void (*backward)(const Tensor& grad, const Tensor& x, const Tensor& scale, const Tensor& added,
                   const Segments& rows, double eps, Tensor& grad_x, Tensor& grad_shift,
                   Tensor& grad_scale);
  KernelLimits limits;
  // The forward pass and codes of `out`, of rows of no more bytes than `widest_codes_bytes`.
  void (*forward_codes)(const Tensor& x, const Tensor& shift, const Tensor& scale,
                        const Segments& rows, double eps, Tensor& out, RowCodes& codes) = nullptr;
  int64_t widest_codes_bytes = 0;
};
extern ATELIER_API KernelTable<NormModulateKernels> norm_modulate_kernels;

// The backward pass is that of the two operators. `sum`: x + gate * y.
struct GateResidualNormModulateKernels {
  using Tensor = at::Tensor;

  void (*forward)(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& shift,
                  const Tensor& scale, const Segments& rows, double eps, Tensor& sum, Tensor& out);
  KernelLimits limits;
  // As that of NormModulateKernels.
  void (*forward_codes)(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& shift,
                        const Tensor& scale, const Segments& rows, double eps, Tensor& sum,
                        Tensor& out, RowCodes& codes) = nullptr;
  int64_t widest_codes_bytes = 0;
};
extern ATELIER_API KernelTable<GateResidualNormModulateKernels> gate_residual_norm_modulate_kernels;

}  // namespace atelier::ops
