#include "ops/cuda/rms_scale.h"

namespace atelier::ops::cuda {

using at::Tensor;

// Defined in rms_norm.cu.
extern const RowKernel rms_scale_rows, rms_scale_backward_rows;

namespace {

// What the sums of a sample's rows are multiplied with.
Tensor sample_factor(const RmsFactor& factor) {
  const Tensor wide = factor.by_sample.to(at::kFloat);
  return factor.is_gate ? wide.tanh() : wide + 1;
}

void put_all(RowArguments& arguments, const Tensor& x, const RmsFactor& factor, double eps,
             Style style) {
  arguments.x = rows_of(x);
  factor.put(arguments, x);
  arguments.rounds_normal = style == Style::kRounded;
  arguments.is_channel = style == Style::kChannel || style == Style::kChannelSilu;
  arguments.silu = style == Style::kChannelSilu;
  arguments.eps = static_cast<float>(eps);
}

}  // namespace

void RmsFactor::put(RowArguments& arguments, const Tensor& x) const {
  arguments.weight = columns_of(weight, x);
  arguments.by_sample = columns_of(by_sample, x);
  arguments.is_gate = is_gate;
}

void RmsFactor::put_weight_gradient(const Tensor& sums, Tensor& gradient) const {
  if (!gradient.defined()) return;
  gradient.copy_((by_sample.defined() ? sums * sample_factor(*this) : sums).sum(0));
}

void RmsFactor::put_sample_gradient(const Tensor& sums, Tensor& gradient) const {
  if (!gradient.defined()) return;
  Tensor result = sums * weight.to(at::kFloat);
  if (is_gate) result = result * (1 - sample_factor(*this).square());
  gradient.copy_(result);
}

void rms_scale(const Tensor& x, const Tensor& added, const RmsFactor& factor, const Segments& rows,
               double eps, Style style, Tensor& out) {
  RowCall call(rms_scale_rows, x, rows, x.size(-1), true, 0);
  put_all(call.arguments, x, factor, eps, style);
  call.arguments.added = rows_of(added);
  call.arguments.out = output_of(out);
  call.run();
}

Tensor rms_scale_backward(const Tensor& grad, const Tensor& x, const RmsFactor& factor,
                          const Segments& rows, double eps, Style style, bool wanted,
                          Tensor& grad_x) {
  RowCall call(rms_scale_backward_rows, x, rows, x.size(-1), true, wanted ? 1 : 0);
  put_all(call.arguments, x, factor, eps, style);
  call.arguments.grad = rows_of(grad);
  call.arguments.out = output_of(grad_x);
  const Tensor totals = call.run();
  return wanted ? totals.select(1, 0) : Tensor();
}

}  // namespace atelier::ops::cuda
