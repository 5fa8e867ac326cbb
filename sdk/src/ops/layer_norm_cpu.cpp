#include "ops/autograd_support.h"
#include "ops/cpu/rows.h"
#include "ops/layer_norm.h"

namespace atelier::ops::cpu {
namespace {

using at::Tensor;

// (x - mean) / deviation * factor + shift; shift and factor: [S, D] in the type of sums.
void norm_scale(const Tensor& x, const Tensor& shift, const Tensor& factor, const Segments& rows,
                double eps, Tensor& out) {
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    loops.norm_scale(at_element(x, c.first * width), row_of(shift, c.sample),
                     row_of(factor, c.sample), at_element(out, c.first * width), c.count, width,
                     eps);
  });
}

// `added` may be undefined; so may the last two, neither or both.
void norm_scale_backward(const Tensor& grad, const Tensor& x, const Tensor& factor,
                         const Tensor& added, const Segments& rows, double eps, Tensor& grad_x,
                         Tensor& grad_shift, Tensor& grad_factor) {
  const int64_t width = x.size(-1);
  const RowKernels& loops = loops_for(x);
  const auto chunks = chunks_of(rows, width);
  SampleSums sums(grad_shift.defined(), x, chunks, 2 * width);
  for_each_chunk(chunks, [&](const Chunk& c, int64_t i) {
    const int64_t first = c.first * width;
    loops.norm_scale_backward(at_element(grad, first), at_element(x, first),
                              row_of(factor, c.sample), at_element_or_null(added, first),
                              at_element(grad_x, first), sums.of_chunk(i), c.count, width, eps);
  });
  put_gradient(sums.total(chunks, rows.count(), 0, width), grad_shift);
  put_gradient(sums.total(chunks, rows.count(), width, width), grad_factor);
}

void layer_norm_forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                        Tensor& out) {
  const auto row = [&](const Tensor& t) { return t.to(wide(x)).unsqueeze(0); };
  norm_scale(x, row(bias), row(weight), one_sample(row_count(x)), eps, out);
}

void layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, double eps,
                         Tensor& grad_x, Tensor& grad_weight, Tensor& grad_bias) {
  norm_scale_backward(grad, x, weight.to(wide(x)).unsqueeze(0), Tensor(), one_sample(row_count(x)),
                      eps, grad_x, grad_bias, grad_weight);
}

void norm_modulate_forward(const Tensor& x, const Tensor& shift, const Tensor& scale,
                           const Segments& rows, double eps, Tensor& out) {
  norm_scale(x, wide_rows(shift), wide_rows(scale) + 1, rows, eps, out);
}

void norm_modulate_backward(const Tensor& grad, const Tensor& x, const Tensor& scale,
                            const Tensor& added, const Segments& rows, double eps, Tensor& grad_x,
                            Tensor& grad_shift, Tensor& grad_scale) {
  norm_scale_backward(grad, x, wide_rows(scale) + 1, added, rows, eps, grad_x, grad_shift,
                      grad_scale);
}

void gate_residual_norm_modulate_forward(const Tensor& x, const Tensor& y, const Tensor& gate,
                                         const Tensor& shift, const Tensor& scale,
                                         const Segments& rows, double eps, Tensor& sum,
                                         Tensor& out) {
  const int64_t width = x.size(1);
  const RowKernels& loops = loops_for(x);
  const Tensor gates = wide_rows(gate), shifts = wide_rows(shift), factors = wide_rows(scale) + 1;
  for_each_chunk(chunks_of(rows, width), [&](const Chunk& c, int64_t) {
    const int64_t first = c.first * width;
    loops.gate_residual_norm_scale(at_element(x, first), at_element(y, first),
                                   row_of(gates, c.sample), row_of(shifts, c.sample),
                                   row_of(factors, c.sample), at_element(sum, first),
                                   at_element(out, first), c.count, width, eps);
  });
}

const DeviceKernels layer_norm(at::kCPU, layer_norm_kernels,
                               {.forward = layer_norm_forward,
                                .backward = layer_norm_backward,
                                .limits = kNoLimits});
const DeviceKernels norm_modulate(at::kCPU, norm_modulate_kernels,
                                  {.forward = norm_modulate_forward,
                                   .backward = norm_modulate_backward,
                                   .limits = kNoLimits});
const DeviceKernels gate_residual_norm_modulate(at::kCPU, gate_residual_norm_modulate_kernels,
                                                {.forward = gate_residual_norm_modulate_forward,
                                                 .limits = kNoLimits});

}  // namespace
}  // namespace atelier::ops::cpu
