#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"
#include "ops/layer_norm.h"

namespace atelier::ops::cuda {

// Defined in layer_norm.cu.
extern const RowKernel norm_modulate_rows, norm_modulate_backward_rows, norm_modulate_codes_rows,
    gate_residual_norm_modulate_rows, gate_residual_norm_modulate_codes_rows;

namespace {

using at::Tensor;

// What the norms read: (x - mean) / deviation * factor + shift, where the factor may be given as
// one less.
void put_norm(RowArguments& arguments, const Tensor& x, const Tensor& shift, const Tensor& factor,
              bool one_plus, double eps) {
  arguments.x = rows_of(x);
  arguments.weight = columns_of(factor, x);
  arguments.shift = columns_of(shift, x);
  arguments.one_plus = one_plus;
  arguments.eps = static_cast<float>(eps);
}

// codes: of `out`; null where they are not wanted.
void norm_scale(const Tensor& x, const Tensor& shift, const Tensor& factor, bool one_plus,
                const Segments& rows, double eps, Tensor& out, RowCodes* codes = nullptr) {
  RowCall call(codes != nullptr ? norm_modulate_codes_rows : norm_modulate_rows, x, rows,
               x.size(-1), true, 0);
  put_norm(call.arguments, x, shift, factor, one_plus, eps);
  call.arguments.out = output_of(out);
  if (codes != nullptr) put_codes(call.arguments, *codes);
  call.run();
}

// The last two may be undefined, both.
void norm_scale_backward(const Tensor& grad, const Tensor& x, const Tensor& factor, bool one_plus,
                         const Tensor& added, const Segments& rows, double eps, Tensor& grad_x,
                         Tensor& grad_shift, Tensor& grad_factor) {
  RowCall call(norm_modulate_backward_rows, x, rows, x.size(-1), true,
               grad_shift.defined() ? 2 : 0);
  put_norm(call.arguments, x, Tensor(), factor, one_plus, eps);
  call.arguments.grad = rows_of(grad);
  call.arguments.added = rows_of(added);
  call.arguments.out = output_of(grad_x);
  const Tensor sums = call.run();
  put_sum(sums, 0, grad_shift);
  put_sum(sums, 1, grad_factor);
}

void layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        Tensor& out) {
  norm_scale(x, readable(bias, x), readable(weight, x), /*one_plus=*/false,
             one_sample(row_count(x)), eps, out);
}

void layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                         Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  norm_scale_backward(grad, x, readable(weight, x), /*one_plus=*/false, Tensor(),
                      one_sample(row_count(x)), eps, grad_x, grad_bias, grad_weight);
}

void norm_modulate_forward(const Tensor& x, const Tensor& shift, const Tensor& scale,
                           const Segments& rows, double eps, Tensor& out) {
  norm_scale(x, shift, scale, /*one_plus=*/true, rows, eps, out);
}

void norm_modulate_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                            const Tensor& added, const Segments& rows, double eps, Tensor& grad_x,
                            Tensor& grad_shift, Tensor& grad_scale) {
  norm_scale_backward(grad, x, scale, /*one_plus=*/true, added, rows, eps, grad_x, grad_shift,
                      grad_scale);
}

void norm_modulate_codes(const Tensor& x, const Tensor& shift, const Tensor& scale,
                         const Segments& rows, double eps, Tensor& out, RowCodes& codes) {
  norm_scale(x, shift, scale, /*one_plus=*/true, rows, eps, out, &codes);
}

void gated_norm(const Tensor& x, const Tensor& y, const Tensor& gate, const Tensor& shift,
                const Tensor& scale, const Segments& rows, double eps, Tensor& sum, Tensor& out,
                RowCodes* codes) {
  RowCall call(
      codes != nullptr ? gate_residual_norm_modulate_codes_rows : gate_residual_norm_modulate_rows,
      x, rows, x.size(1), true, 0);
  put_norm(call.arguments, x, shift, scale, /*one_plus=*/true, eps);
  call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, x);
  call.arguments.out = output_of(out);
  call.arguments.second = output_of(sum);
  if (codes != nullptr) put_codes(call.arguments, *codes);
  call.run();
}

void gate_residual_norm_modulate_forward(const Tensor& x, const Tensor& y, const Tensor& gate,
                                         const Tensor& shift, const Tensor& scale,
                                         const Segments& rows, double eps, Tensor& sum,
                                         Tensor& out) {
  gated_norm(x, y, gate, shift, scale, rows, eps, sum, out, nullptr);
}

void gate_residual_norm_modulate_codes(const Tensor& x, const Tensor& y, const Tensor& gate,
                                       const Tensor& shift, const Tensor& scale,
                                       const Segments& rows, double eps, Tensor& sum, Tensor& out,
                                       RowCodes& codes) {
  gated_norm(x, y, gate, shift, scale, rows, eps, sum, out, &codes);
}

const DeviceKernels layer_norm(row_device(), layer_norm_kernels,
                               {.forward = layer_norm_forward,
                                .backward = layer_norm_backward,
                                .limits = {.widest_row_bytes = kWidestRowBytes}});
const DeviceKernels norm_modulate(row_device(), norm_modulate_kernels,
                                  {.forward = norm_modulate_forward,
                                   .backward = norm_modulate_backward,
                                   .limits = {.widest_row_bytes = kWidestRowBytes},
                                   .forward_codes = norm_modulate_codes,
                                   .widest_codes_bytes = kWidestCodesBytes});
const DeviceKernels gate_residual_norm_modulate(row_device(), gate_residual_norm_modulate_kernels,
                                                {.forward = gate_residual_norm_modulate_forward,
                                                 .limits = {.widest_row_bytes = kWidestRowBytes},
                                                 .forward_codes = gate_residual_norm_modulate_codes,
                                                 .widest_codes_bytes = kWidestCodesBytes});

}  // namespace
}  // namespace atelier::ops::cuda
