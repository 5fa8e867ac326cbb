// What the fused pointwise kernels allocate, without what they compute: for dry runs.
#include <ATen/ATen.h>

#include "ops/pointwise_kernels.h"

namespace atelier::ops::meta {
namespace {

using at::Tensor;

Tensor packed_like(const Tensor& like) {
  return at::empty(like.sizes(), like.options());
}

// Gradients of modulations and of weights, in their dtype: undefined unless wanted.
Tensor sums(bool wanted, at::IntArrayRef sizes, const Tensor& like) {
  return wanted ? at::empty(sizes, like.options()) : Tensor();
}

Tensor norm_modulate(const Tensor& x, const Tensor&, const Tensor&, const Segments&, double) {
  return packed_like(x);
}

std::array<Tensor, 3> norm_modulate_backward(const Tensor&, const Tensor& x, const Tensor& scale,
                                             const Tensor&, const Segments& rows, double,
                                             bool modulation) {
  const std::array<int64_t, 2> sizes = {rows.count(), x.size(1)};
  return {packed_like(x), sums(modulation, sizes, scale), sums(modulation, sizes, scale)};
}

Tensor gate_residual(const Tensor& x, const Tensor&, const Tensor&, const Segments&) {
  return packed_like(x);
}

std::array<Tensor, 2> gate_residual_backward(const Tensor& grad, const Tensor&, const Tensor& gate,
                                             const Segments& rows, bool gate_grad) {
  return {packed_like(grad), sums(gate_grad, {rows.count(), grad.size(1)}, gate)};
}

std::array<Tensor, 2> gate_residual_norm_modulate(const Tensor& x, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&, const Segments&,
                                                  double) {
  return {packed_like(x), packed_like(x)};
}

Tensor layer_norm(const Tensor& x, const Tensor&, const Tensor&, double) {
  return packed_like(x);
}

std::array<Tensor, 3> layer_norm_backward(const Tensor&, const Tensor& x, const Tensor& weight,
                                          double, bool weight_grad) {
  return {packed_like(x), sums(weight_grad, weight.sizes(), weight),
          sums(weight_grad, weight.sizes(), weight)};
}

Tensor rms_norm(const Tensor& x, const Tensor&, double) {
  return packed_like(x);
}

std::array<Tensor, 2> rms_norm_backward(const Tensor&, const Tensor& x, const Tensor&, double,
                                        bool weight_grad) {
  return {packed_like(x), sums(weight_grad, {x.size(-1)}, x)};
}

Tensor rms_norm_modulate(const Tensor& x, const Tensor&, const Tensor&, const Segments&, double) {
  return packed_like(x);
}

std::array<Tensor, 3> rms_norm_modulate_backward(const Tensor&, const Tensor& x, const Tensor&,
                                                 const Tensor& scale, const Segments&, double,
                                                 bool weight_grad, bool scale_grad) {
  return {packed_like(x), sums(weight_grad, {x.size(1)}, x),
          scale_grad ? at::empty(scale.sizes(), scale.options()) : Tensor()};
}

Tensor rms_gate_residual(const Tensor& x, const Tensor&, const Tensor&, const Tensor&,
                         const Segments&, double) {
  return packed_like(x);
}

std::array<Tensor, 3> rms_gate_residual_backward(const Tensor&, const Tensor& y, const Tensor&,
                                                 const Tensor& gate, const Segments&, double,
                                                 bool weight_grad, bool gate_grad) {
  return {packed_like(y), sums(weight_grad, {y.size(1)}, y),
          gate_grad ? at::empty(gate.sizes(), gate.options()) : Tensor()};
}

std::array<Tensor, 2> rms_gate_residual_norm_modulate(const Tensor& x, const Tensor&, const Tensor&,
                                                      const Tensor&, const Tensor&, const Tensor&,
                                                      const Segments&, double) {
  return {packed_like(x), packed_like(x)};
}

std::array<Tensor, 6> rms_gate_residual_norm_modulate_backward(const Tensor&, const Tensor&,
                                                               const Tensor& x, const Tensor& y,
                                                               const Tensor&, const Tensor& gate,
                                                               const Tensor&, const Tensor& scale,
                                                               const Segments&, double,
                                                               std::array<bool, 4> wanted) {
  const auto like = [](bool is_wanted, const Tensor& t) {
    return is_wanted ? at::empty(t.sizes(), t.options()) : Tensor();
  };
  return {packed_like(x),
          packed_like(y),
          sums(wanted[0], {x.size(1)}, x),
          like(wanted[1], gate),
          sums(wanted[2], {x.size(1)}, x),
          like(wanted[3], scale)};
}

void norm_rope(const Tensor&, const Tensor&, const Tensor&, const Tensor&, RopeLayout, double,
               const StreamRows&, Tensor&) {}

std::array<Tensor, 2> norm_rope_backward(const Tensor& grad, const Tensor&, const Tensor&,
                                         const Tensor&, const Tensor&, RopeLayout, double,
                                         const StreamRows& stream, bool weight_grad) {
  return {at::empty({stream.rows.total(), grad.size(1), grad.size(2)}, grad.options()),
          sums(weight_grad, {grad.size(2)}, grad)};
}

Tensor swiglu(const Tensor& gate, const Tensor&) {
  return packed_like(gate);
}

std::array<Tensor, 2> swiglu_backward(const Tensor&, const Tensor& gate, const Tensor& up) {
  return {packed_like(gate), packed_like(up)};
}

Tensor gelu_tanh(const Tensor& x) {
  return packed_like(x);
}

Tensor gelu_tanh_backward(const Tensor&, const Tensor& x) {
  return packed_like(x);
}

Tensor channel_norm(const Tensor& x, const Tensor&, bool) {
  return packed_like(x);
}

std::array<Tensor, 2> channel_norm_backward(const Tensor&, const Tensor& x, const Tensor& gamma,
                                            bool, bool gamma_grad) {
  return {packed_like(x), sums(gamma_grad, gamma.sizes(), x)};
}

}  // namespace

const PointwiseKernels pointwise_kernels = {
    .norm_modulate = norm_modulate,
    .norm_modulate_backward = norm_modulate_backward,
    .gate_residual = gate_residual,
    .gate_residual_backward = gate_residual_backward,
    .gate_residual_norm_modulate = gate_residual_norm_modulate,
    .layer_norm = layer_norm,
    .layer_norm_backward = layer_norm_backward,
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .rms_norm_modulate = rms_norm_modulate,
    .rms_norm_modulate_backward = rms_norm_modulate_backward,
    .rms_gate_residual = rms_gate_residual,
    .rms_gate_residual_backward = rms_gate_residual_backward,
    .rms_gate_residual_norm_modulate = rms_gate_residual_norm_modulate,
    .rms_gate_residual_norm_modulate_backward = rms_gate_residual_norm_modulate_backward,
    .norm_rope = norm_rope,
    .norm_rope_backward = norm_rope_backward,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .gelu_tanh = gelu_tanh,
    .gelu_tanh_backward = gelu_tanh_backward,
    .channel_norm = channel_norm,
    .channel_norm_backward = channel_norm_backward,
    .takes_float64 = true,
    .widest_row_bytes = 0};

}  // namespace atelier::ops::meta
