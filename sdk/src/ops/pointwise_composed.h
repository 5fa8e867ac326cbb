// The pointwise operators from plain LibTorch operators: their definition, and what runs where no
// fused kernel does.
#pragma once

#include <tuple>

#include "atelier/ops/pointwise.h"

namespace atelier::ops::composed {

at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& shift, const at::Tensor& scale,
                         const Segments& rows, double eps);
at::Tensor gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& gate,
                         const Segments& rows);
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor rms_norm_modulate(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& scale,
                             const Segments& rows, double eps);
at::Tensor rms_gate_residual(const at::Tensor& x, const at::Tensor& y, const at::Tensor& weight,
                             const at::Tensor& gate, const Segments& rows, double eps);
at::Tensor norm_rope(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cos,
                     const at::Tensor& sin, RopeLayout layout, double eps);
at::Tensor joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout,
                            double eps);
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);
at::Tensor gelu_tanh(const at::Tensor& x);
at::Tensor channel_norm(const at::Tensor& x, const at::Tensor& gamma, bool silu);

}  // namespace atelier::ops::composed
