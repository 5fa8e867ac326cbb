// The host half of the kernels on rows: tensors become arguments.
#include "ops/cuda/pointwise_cuda.h"

#include <ATen/ATen.h>

#include "atelier/host/upload.h"

#include "ops/cuda/adamw_cuda.h"
#include "ops/cuda/codes_cuda.h"
#include "ops/cuda/group_norm_cuda.h"
#include "ops/cuda/row_call.h"
#include "ops/cuda/row_plan.h"

namespace atelier::ops::cuda {
namespace {

using at::Tensor;

// Sum k, [S, width], in the dtype of what it is the gradient of; undefined unless `wanted`.
Tensor gradient(const Tensor& totals, int64_t k, const Tensor& of, bool wanted) {
  return wanted ? totals.select(1, k).to(of.scalar_type()) : Tensor();
}

// (x - mean) / deviation * factor + shift, where the factor may be given as one less.
Tensor norm_scale(const Tensor& x, const Tensor& shift, const Tensor& factor, bool one_plus,
                  const Segments& rows, double eps) {
  Tensor out = packed_like(x);
  RowCall call(RowOperator::norm_modulate, x, rows, x.size(-1), true, 0);
  call.arguments.x = rows_of(x);
  call.arguments.weight = columns_of(factor, x);
  call.arguments.shift = columns_of(shift, x);
  call.arguments.one_plus = one_plus;
  call.arguments.eps = static_cast<float>(eps);
  call.arguments.out = output_of(out);
  call.run();
  return out;
}

// {x, sums of shift and factor}
std::array<Tensor, 2> norm_scale_backward(const Tensor& grad, const Tensor& x, const Tensor& factor,
                                          bool one_plus, const Tensor& added, const Segments& rows,
                                          double eps, bool wanted) {
  Tensor grad_x = packed_like(x);
  RowCall call(RowOperator::norm_modulate_backward, x, rows, x.size(-1), true, wanted ? 2 : 0);
  call.arguments.x = rows_of(x);
  call.arguments.grad = rows_of(grad);
  call.arguments.added = rows_of(added);
  call.arguments.weight = columns_of(factor, x);
  call.arguments.one_plus = one_plus;
  call.arguments.eps = static_cast<float>(eps);
  call.arguments.out = output_of(grad_x);
  return {grad_x, call.run()};
}

Tensor norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                     const Segments& rows, double eps) {
  return norm_scale(x, shift, scale, /*one_plus=*/true, rows, eps);
}

std::array<Tensor, 3> norm_modulate_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& scale, const Tensor& added,
                                             const Segments& rows, double eps, bool modulation) {
  const auto [grad_x, sums] =
      norm_scale_backward(grad, x, scale, /*one_plus=*/true, added, rows, eps, modulation);
  return {grad_x, gradient(sums, 0, scale, modulation), gradient(sums, 1, scale, modulation)};
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return norm_scale(x, readable(bias, x), readable(weight, x), /*one_plus=*/false,
                    one_sample(row_count(x)), eps);
}

std::array<Tensor, 3> layer_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                          double eps, bool weight_grad) {
  const auto [grad_x, sums] =
      norm_scale_backward(grad, x, readable(weight, x), /*one_plus=*/false, Tensor(),
                          one_sample(row_count(x)), eps, weight_grad);
  if (!weight_grad) return {grad_x, Tensor(), Tensor()};
  return {grad_x, gradient(sums, 1, weight, true).squeeze(0),
          gradient(sums, 0, weight, true).squeeze(0)};
}

Tensor gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Segments& rows) {
  Tensor out = packed_like(x);
  RowCall call(RowOperator::gate_residual, x, rows, x.size(1), false, 0);
  call.arguments.x = rows_of(x);
  call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, x);
  call.arguments.out = output_of(out);
  call.run();
  return out;
}

std::array<Tensor, 2> gate_residual_backward(const Tensor& grad, const Tensor& y,
                                             const Tensor& gate, const Segments& rows,
                                             bool gate_grad) {
  Tensor grad_y = packed_like(grad);
  RowCall call(RowOperator::gate_residual_backward, grad, rows, grad.size(1), false,
               gate_grad ? 1 : 0);
  call.arguments.grad = rows_of(grad);
  if (gate_grad) call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, grad);
  call.arguments.out = output_of(grad_y);
  return {grad_y, gradient(call.run(), 0, gate, gate_grad)};
}

std::array<Tensor, 2> gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                  const Tensor& gate, const Tensor& shift,
                                                  const Tensor& scale, const Segments& rows,
                                                  double eps) {
  Tensor sum = packed_like(x), out = packed_like(x);
  RowCall call(RowOperator::gate_residual_norm_modulate, x, rows, x.size(1), true, 0);
  call.arguments.x = rows_of(x);
  call.arguments.y = rows_of(y);
  call.arguments.by_sample = columns_of(gate, x);
  call.arguments.weight = columns_of(scale, x);
  call.arguments.shift = columns_of(shift, x);
  call.arguments.one_plus = true;
  call.arguments.eps = static_cast<float>(eps);
  call.arguments.out = output_of(out);
  call.arguments.second = output_of(sum);
  call.run();
  return {sum, out};
}

// What an RMS norm's result is multiplied with: the weight, times what a sample has.
struct RmsFactor {
  Tensor weight, by_sample;  // by_sample may be undefined
  bool is_gate;

  void put(RowArguments& arguments, const Tensor& x) const {
    arguments.weight = columns_of(weight, x);
    arguments.by_sample = columns_of(by_sample, x);
    arguments.is_gate = is_gate;
  }
  Tensor sample_factor() const {
    const Tensor wide = by_sample.to(at::kFloat);
    return is_gate ? wide.tanh() : wide + 1;
  }
  // From the sums over the rows of each sample, [S, D].
  Tensor weight_gradient(const Tensor& sums, bool wanted) const {
    if (!wanted) return Tensor();
    return (by_sample.defined() ? sums * sample_factor() : sums).sum(0).to(weight.scalar_type());
  }
  Tensor sample_gradient(const Tensor& sums, bool wanted) const {
    if (!wanted) return Tensor();
    Tensor result = sums * weight.to(at::kFloat);
    if (is_gate) result = result * (1 - sample_factor().square());
    return result.to(by_sample.scalar_type());
  }
};

enum class Style { kPlain, kRounded, kChannel, kChannelSilu };

void put_style(RowArguments& arguments, Style style) {
  arguments.rounds_normal = style == Style::kRounded;
  arguments.is_channel = style == Style::kChannel || style == Style::kChannelSilu;
  arguments.silu = style == Style::kChannelSilu;
}

Tensor rms_scale(const Tensor& x, const Tensor& added, const RmsFactor& factor,
                 const Segments& rows, double eps, Style style) {
  Tensor out = packed_like(x);
  RowCall call(RowOperator::rms_scale, x, rows, x.size(-1), true, 0);
  call.arguments.x = rows_of(x);
  call.arguments.added = rows_of(added);
  factor.put(call.arguments, x);
  put_style(call.arguments, style);
  call.arguments.eps = static_cast<float>(eps);
  call.arguments.out = output_of(out);
  call.run();
  return out;
}

// {x, sums of the factor [S, D]}
std::array<Tensor, 2> rms_scale_backward(const Tensor& grad, const Tensor& x,
                                         const RmsFactor& factor, const Segments& rows, double eps,
                                         Style style, bool wanted) {
  Tensor grad_x = packed_like(x);
  RowCall call(RowOperator::rms_scale_backward, x, rows, x.size(-1), true, wanted ? 1 : 0);
  call.arguments.x = rows_of(x);
  call.arguments.grad = rows_of(grad);
  factor.put(call.arguments, x);
  put_style(call.arguments, style);
  call.arguments.eps = static_cast<float>(eps);
  call.arguments.out = output_of(grad_x);
  const Tensor totals = call.run();
  return {grad_x, wanted ? totals.select(1, 0) : Tensor()};
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  return rms_scale(x, Tensor(), {weight, Tensor(), false}, one_sample(row_count(x)), eps,
                   Style::kRounded);
}

std::array<Tensor, 2> rms_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                        double eps, bool weight_grad) {
  const RmsFactor factor = {weight, Tensor(), false};
  const auto [grad_x, sums] = rms_scale_backward(grad, x, factor, one_sample(row_count(x)), eps,
                                                 Style::kRounded, weight_grad);
  return {grad_x, factor.weight_gradient(sums, weight_grad)};
}

Tensor rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                         const Segments& rows, double eps) {
  return rms_scale(x, Tensor(), {weight, scale, false}, rows, eps, Style::kPlain);
}

std::array<Tensor, 3> rms_norm_modulate_backward(const Tensor& grad, const Tensor& x,
                                                 const Tensor& weight, const Tensor& scale,
                                                 const Segments& rows, double eps, bool weight_grad,
                                                 bool scale_grad) {
  const RmsFactor factor = {weight, scale, false};
  const auto [grad_x, sums] =
      rms_scale_backward(grad, x, factor, rows, eps, Style::kPlain, weight_grad || scale_grad);
  return {grad_x, factor.weight_gradient(sums, weight_grad),
          factor.sample_gradient(sums, scale_grad)};
}

Tensor rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                         const Segments& rows, double eps) {
  return rms_scale(y, x, {weight, gate, true}, rows, eps, Style::kPlain);
}

std::array<Tensor, 3> rms_gate_residual_backward(const Tensor& grad, const Tensor& y,
                                                 const Tensor& weight, const Tensor& gate,
                                                 const Segments& rows, double eps, bool weight_grad,
                                                 bool gate_grad) {
  const RmsFactor factor = {weight, gate, true};
  const auto [grad_y, sums] =
      rms_scale_backward(grad, y, factor, rows, eps, Style::kPlain, weight_grad || gate_grad);
  return {grad_y, factor.weight_gradient(sums, weight_grad),
          factor.sample_gradient(sums, gate_grad)};
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

std::array<Tensor, 2> rms_gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                      const Tensor& weight, const Tensor& gate,
                                                      const Tensor& next_weight,
                                                      const Tensor& scale, const Segments& rows,
                                                      double eps) {
  Tensor sum = packed_like(x), out = packed_like(x);
  RowCall call(RowOperator::rms_gate_residual_norm_modulate, x, rows, x.size(1), true, 0);
  put_gated(call.arguments, x, y, {weight, gate, true}, {next_weight, scale, false}, eps);
  call.arguments.out = output_of(out);
  call.arguments.second = output_of(sum);
  call.run();
  return {sum, out};
}

std::array<Tensor, 6> rms_gate_residual_norm_modulate_backward(
    const Tensor& grad_sum, const Tensor& grad, const Tensor& x, const Tensor& y,
    const Tensor& weight, const Tensor& gate, const Tensor& next_weight, const Tensor& scale,
    const Segments& rows, double eps, std::array<bool, 4> wanted) {
  Tensor grad_x = packed_like(x), grad_y = packed_like(y);
  const RmsFactor gated = {weight, gate, true}, scaled = {next_weight, scale, false};
  const bool is_any = wanted[0] || wanted[1] || wanted[2] || wanted[3];
  RowCall call(RowOperator::rms_gate_residual_norm_modulate_backward, x, rows, x.size(1), true,
               is_any ? 2 : 0);
  put_gated(call.arguments, x, y, gated, scaled, eps);
  call.arguments.grad = rows_of(grad);
  call.arguments.added = rows_of(grad_sum);
  call.arguments.out = output_of(grad_x);
  call.arguments.second = output_of(grad_y);
  const Tensor totals = call.run();
  const Tensor of_gate = is_any ? totals.select(1, 0) : Tensor();
  const Tensor of_scale = is_any ? totals.select(1, 1) : Tensor();
  return {grad_x,
          grad_y,
          gated.weight_gradient(of_gate, wanted[0]),
          gated.sample_gradient(of_gate, wanted[1]),
          scaled.weight_gradient(of_scale, wanted[2]),
          scaled.sample_gradient(of_scale, wanted[3])};
}

// Rows of the grid are heads, columns are pairs.
void put_heads(RowArguments& arguments, const Tensor& x, const Tensor& weight, const Tensor& cos,
               const Tensor& sin, int64_t heads, RopeLayout layout, double eps) {
  arguments.halves = layout == RopeLayout::kHalves;
  arguments.heads = heads;
  arguments.cos = cos.const_data_ptr<float>();
  arguments.sin = sin.const_data_ptr<float>();
  arguments.eps = static_cast<float>(eps);
  if (weight.defined()) arguments.weight = input_of(weight, 0);
  if (!x.defined()) return;
  arguments.x = input_of(x, x.stride(0));
  arguments.head_stride = x.stride(1);
  arguments.x.is_aligned &= x.stride(1) * x.element_size() % 16 == 0;
}

// Second halves of heads begin at an address of their own.
void align_halves(RowArguments& arguments, int64_t half_bytes, const Tensor& cos,
                  const Tensor& sin) {
  const bool is_even = half_bytes % 16 == 0;
  for (Input* from : {&arguments.x, &arguments.grad, &arguments.weight})
    from->is_aligned &= is_even;
  arguments.out.is_aligned &= is_even;
  const int64_t half = cos.size(1);
  arguments.are_angles_aligned = is_aligned(cos.const_data_ptr(), half, sizeof(float)) &&
                                 is_aligned(sin.const_data_ptr(), half, sizeof(float));
}

// Its samples in heads, and where their rows stand among those of both streams, on the device.
struct StreamHeads {
  Segments heads;
  Tensor offsets;  // keeps rows_before alive; undefined where one sample needs none
  const int64_t* rows_before = nullptr;

  StreamHeads(const StreamRows& stream, int64_t count, at::Device device)
      : heads(Segments::from_tensor(stream.rows.own_offsets() * count)) {
    if (stream.others.total() == 0) return;
    offsets = offsets_on(stream.others, device);
    rows_before = offsets.const_data_ptr<int64_t>() + (stream.is_first ? 0 : 1);
  }
};

void norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
               RopeLayout layout, double eps, const StreamRows& stream, Tensor& out) {
  const StreamHeads place(stream, x.size(1), x.device());
  RowCall call(RowOperator::norm_rope, x, place.heads, x.size(2) / 2, weight.defined(), 0);
  put_heads(call.arguments, x, weight, cos, sin, x.size(1), layout, eps);
  call.arguments.rows_before = place.rows_before;
  call.arguments.out = output_of(out);
  align_halves(call.arguments, x.size(2) / 2 * x.element_size(), cos, sin);
  call.run();
}

std::array<Tensor, 2> norm_rope_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                         const Tensor& cos, const Tensor& sin, RopeLayout layout,
                                         double eps, const StreamRows& stream, bool weight_grad) {
  const int64_t heads = grad.size(1), width = grad.size(2);
  Tensor grad_x = at::empty({stream.rows.total(), heads, width}, grad.options());
  const StreamHeads place(stream, heads, grad.device());
  RowCall call(RowOperator::norm_rope_backward, grad, place.heads, width / 2, weight.defined(),
               weight_grad ? 2 : 0);
  put_heads(call.arguments, weight.defined() ? x : Tensor(), weight, cos, sin, heads, layout, eps);
  call.arguments.rows_before = place.rows_before;
  call.arguments.grad = input_of(grad, grad.stride(0));
  call.arguments.out = output_of(grad_x);
  align_halves(call.arguments, width / 2 * grad.element_size(), cos, sin);
  const Tensor totals = call.run();
  if (!weight_grad) return {grad_x, Tensor()};
  const Tensor sums = totals.size(0) == 1 ? totals[0] : totals.sum(0);
  const Tensor channels = layout == RopeLayout::kHalves ? sums : sums.transpose(0, 1);
  return {grad_x, channels.reshape({grad.size(2)}).to(weight.scalar_type())};
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  Tensor out = packed_like(gate);
  const Segments rows = one_sample(gate.size(0));
  RowCall call(RowOperator::swiglu, gate, rows, gate.size(1), false, 0);
  call.arguments.x = input_of(gate, gate.stride(0));
  call.arguments.y = input_of(up, up.stride(0));
  call.arguments.out = output_of(out);
  call.run();
  return out;
}

std::array<Tensor, 2> swiglu_backward(const Tensor& grad, const Tensor& gate, const Tensor& up) {
  Tensor grad_gate = packed_like(gate), grad_up = packed_like(up);
  const Segments rows = one_sample(gate.size(0));
  RowCall call(RowOperator::swiglu_backward, gate, rows, gate.size(1), false, 0);
  call.arguments.x = input_of(gate, gate.stride(0));
  call.arguments.y = input_of(up, up.stride(0));
  call.arguments.grad = rows_of(grad);
  call.arguments.out = output_of(grad_gate);
  call.arguments.second = output_of(grad_up);
  call.run();
  return {grad_gate, grad_up};
}

// All values as one row.
Tensor gelu_tanh(const Tensor& x) {
  Tensor out = packed_like(x), flat = out.view({-1});
  const Segments rows = one_sample(1);
  RowCall call(RowOperator::gelu_tanh, x, rows, x.numel(), false, 0);
  call.arguments.x = rows_of(x.view({-1}));
  call.arguments.out = output_of(flat);
  call.run();
  return out;
}

Tensor gelu_tanh_backward(const Tensor& grad, const Tensor& x) {
  Tensor grad_x = packed_like(x), flat = grad_x.view({-1});
  const Segments rows = one_sample(1);
  RowCall call(RowOperator::gelu_tanh_backward, x, rows, x.numel(), false, 0);
  call.arguments.x = rows_of(x.view({-1}));
  call.arguments.grad = rows_of(grad.view({-1}));
  call.arguments.out = output_of(flat);
  call.run();
  return grad_x;
}

Tensor channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  return rms_scale(x, Tensor(), {gamma, Tensor(), false}, one_sample(row_count(x)), 0,
                   silu ? Style::kChannelSilu : Style::kChannel);
}

std::array<Tensor, 2> channel_norm_backward(const Tensor& grad, const Tensor& x,
                                            const Tensor& gamma, bool silu, bool gamma_grad) {
  const RmsFactor factor = {gamma, Tensor(), false};
  const auto [grad_x, sums] =
      rms_scale_backward(grad, x, factor, one_sample(row_count(x)), 0,
                         silu ? Style::kChannelSilu : Style::kChannel, gamma_grad);
  return {grad_x, factor.weight_gradient(sums, gamma_grad)};
}

}  // namespace

const PointwiseKernels pointwise_kernels = {norm_modulate,
                                            norm_modulate_backward,
                                            gate_residual,
                                            gate_residual_backward,
                                            gate_residual_norm_modulate,
                                            layer_norm,
                                            layer_norm_backward,
                                            rms_norm,
                                            rms_norm_backward,
                                            rms_norm_modulate,
                                            rms_norm_modulate_backward,
                                            rms_gate_residual,
                                            rms_gate_residual_backward,
                                            rms_gate_residual_norm_modulate,
                                            rms_gate_residual_norm_modulate_backward,
                                            norm_rope,
                                            norm_rope_backward,
                                            swiglu,
                                            swiglu_backward,
                                            gelu_tanh,
                                            gelu_tanh_backward,
                                            channel_norm,
                                            channel_norm_backward,
                                            /*takes_float64=*/false,
                                            kWidestRowBytes,
                                            group_norm,
                                            group_norm_backward,
                                            quantize_rows,
                                            norm_modulate_codes,
                                            gate_residual_norm_modulate_codes,
                                            gelu_tanh_codes,
                                            draw_codes,
                                            scale_sums,
                                            kWidestCodesBytes,
                                            adamw_8bit};

}  // namespace atelier::ops::cuda
