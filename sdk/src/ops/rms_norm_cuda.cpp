#include "ops/cuda/rms_scale.h"
#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"
#include "ops/rms_norm.h"

namespace atelier::ops::cuda {

// Defined in rms_norm.cu.
extern const RowKernel rms_gate_residual_norm_modulate_rows,
    rms_gate_residual_norm_modulate_backward_rows;

namespace {

using at::Tensor;

void rms_norm_forward(const Tensor& x, const Tensor& weight, double eps, Tensor& out) {
  rms_scale(x, Tensor(), {weight, Tensor(), false}, one_sample(row_count(x)), eps, Style::kRounded,
            out);
}

void rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                       Tensor& grad_x, Tensor& grad_weight) {
  const RmsFactor factor = {weight, Tensor(), false};
  const Tensor sums = rms_scale_backward(grad, x, factor, one_sample(row_count(x)), eps,
                                         Style::kRounded, grad_weight.defined(), grad_x);
  factor.put_weight_gradient(sums, grad_weight);
}

void rms_norm_modulate_forward(const Tensor& x, const Tensor& weight, const Tensor& scale,
                               const Segments& rows, double eps, Tensor& out) {
  rms_scale(x, Tensor(), {weight, scale, false}, rows, eps, Style::kPlain, out);
}

// The gradients of a norm's rows, of its weight and of what a sample has.
void factor_backward(const Tensor& grad, const Tensor& x, const RmsFactor& factor,
                     const Segments& rows, double eps, Tensor& grad_x, Tensor& grad_weight,
                     Tensor& grad_by_sample) {
  const Tensor sums = rms_scale_backward(grad, x, factor, rows, eps, Style::kPlain,
                                         grad_weight.defined() || grad_by_sample.defined(), grad_x);
  factor.put_weight_gradient(sums, grad_weight);
  factor.put_sample_gradient(sums, grad_by_sample);
}

void rms_norm_modulate_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                const Tensor& scale, const Segments& rows, double eps,
                                Tensor& grad_x, Tensor& grad_weight, Tensor& grad_scale) {
  factor_backward(grad, x, {weight, scale, false}, rows, eps, grad_x, grad_weight, grad_scale);
}

void rms_gate_residual_forward(const Tensor& x, const Tensor& y, const Tensor& weight,
                               const Tensor& gate, const Segments& rows, double eps, Tensor& out) {
  rms_scale(y, x, {weight, gate, true}, rows, eps, Style::kPlain, out);
}

void rms_gate_residual_backward(const Tensor& grad, const Tensor& y, const Tensor& weight,
                                const Tensor& gate, const Segments& rows, double eps,
                                Tensor& grad_y, Tensor& grad_weight, Tensor& grad_gate) {
  factor_backward(grad, y, {weight, gate, true}, rows, eps, grad_y, grad_weight, grad_gate);
}

// What both directions read.
void put_gated(RowArguments& arguments, const Tensor& x, const Tensor& y, const RmsFactor& gated,
               const RmsFactor& scaled, double eps) {
  gated.put(arguments, x);
  arguments.x = rows_of(x);
  arguments.y = rows_of(y);
  arguments.next_weight = columns_of(scaled.weight, x);
  arguments.next_by_sample = columns_of(scaled.by_sample, x);
  arguments.eps = static_cast<float>(eps);
}

void rms_gate_residual_norm_modulate_forward(const Tensor& x, const Tensor& y, const Tensor& weight,
                                             const Tensor& gate, const Tensor& next_weight,
                                             const Tensor& scale, const Segments& rows, double eps,
                                             Tensor& sum, Tensor& out) {
  RowCall call(rms_gate_residual_norm_modulate_rows, x, rows, x.size(1), true, 0);
  put_gated(call.arguments, x, y, {weight, gate, true}, {next_weight, scale, false}, eps);
  call.arguments.out = output_of(out);
  call.arguments.second = output_of(sum);
  call.run();
}

void rms_gate_residual_norm_modulate_backward(const Tensor& grad, const Tensor& grad_sum,
                                              const Tensor& x, const Tensor& y,
                                              const Tensor& weight, const Tensor& gate,
                                              const Tensor& next_weight, const Tensor& scale,
                                              const Segments& rows, double eps,
                                              RmsGateResidualNormModulateGradients& to) {
  const RmsFactor gated = {weight, gate, true}, scaled = {next_weight, scale, false};
  const bool is_any =
      to.weight.defined() || to.gate.defined() || to.next_weight.defined() || to.scale.defined();
  RowCall call(rms_gate_residual_norm_modulate_backward_rows, x, rows, x.size(1), true,
               is_any ? 2 : 0);
  put_gated(call.arguments, x, y, gated, scaled, eps);
  call.arguments.grad = rows_of(grad);
  call.arguments.added = rows_of(grad_sum);
  call.arguments.out = output_of(to.x);
  call.arguments.second = output_of(to.y);
  const Tensor totals = call.run();
  const Tensor of_gate = is_any ? totals.select(1, 0) : Tensor();
  const Tensor of_scale = is_any ? totals.select(1, 1) : Tensor();
  gated.put_weight_gradient(of_gate, to.weight);
  gated.put_sample_gradient(of_gate, to.gate);
  scaled.put_weight_gradient(of_scale, to.next_weight);
  scaled.put_sample_gradient(of_scale, to.scale);
}

const DeviceKernels rms_norm(row_device(), rms_norm_kernels,
                             {.forward = rms_norm_forward,
                              .backward = rms_norm_backward,
                              .limits = {.widest_row_bytes = kWidestRowBytes}});
const DeviceKernels rms_norm_modulate(row_device(), rms_norm_modulate_kernels,
                                      {.forward = rms_norm_modulate_forward,
                                       .backward = rms_norm_modulate_backward,
                                       .limits = {.widest_row_bytes = kWidestRowBytes}});
const DeviceKernels rms_gate_residual(row_device(), rms_gate_residual_kernels,
                                      {.forward = rms_gate_residual_forward,
                                       .backward = rms_gate_residual_backward,
                                       .limits = {.widest_row_bytes = kWidestRowBytes}});
const DeviceKernels rms_gate_residual_norm_modulate(
    row_device(), rms_gate_residual_norm_modulate_kernels,
    {.forward = rms_gate_residual_norm_modulate_forward,
     .backward = rms_gate_residual_norm_modulate_backward,
     .limits = {.widest_row_bytes = kWidestRowBytes}});

}  // namespace
}  // namespace atelier::ops::cuda
