#include "atelier/ops/pointwise.h"

#include <torch/csrc/autograd/custom_function.h>

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"
#include "ops/pointwise_composed.h"
#include "ops/pointwise_kernels.h"
#include "ops/shared_codes.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_packed(const Tensor& x, const Segments& rows) {
  return x.dim() == 2 && x.size(0) == rows.total();
}

bool modulates(const Tensor& t, const Tensor& x, const Segments& rows) {
  const bool is_wider = t.scalar_type() == at::kFloat && x.element_size() == 2;
  return t.dim() == 2 && t.size(0) == rows.count() && t.size(1) == x.size(1) &&
         (t.scalar_type() == x.scalar_type() || is_wider);
}

bool is_width_of(const Tensor& t, const Tensor& x) {
  return t.dim() == 1 && t.size(0) == x.size(-1);
}

// Rows as [N, D].
Tensor flat_rows(const Tensor& t) {
  return dense_rows(t.reshape({-1, t.size(-1)}));
}

// Channels last: [B, H, W, C].
Tensor channel_rows(const Tensor& t) {
  return t.permute({0, 2, 3, 1}).contiguous();
}

// The inverse, in the memory format of `like`.
Tensor channels_of(const Tensor& rows, const Tensor& like) {
  return rows.permute({0, 3, 1, 2}).contiguous(like.suggest_memory_format()).tensor_data();
}

Segments saved_rows(AutogradContext* ctx) {
  return Segments::from_tensor(ctx->saved_data["rows"].toTensor());
}

struct NormModulate : torch::autograd::Function<NormModulate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& shift,
                        const Tensor& scale, const Segments& rows, double eps) {
    ctx->save_for_backward({x, scale});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return run_norm_modulate(x.contiguous(), dense_rows(shift), dense_rows(scale), rows, eps,
                             kernels_for(x));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    auto given = kernels_for(saved[0]).norm_modulate_backward(
        grads[0].contiguous(), saved[0].contiguous(), dense_rows(saved[1]), Tensor(),
        saved_rows(ctx), ctx->saved_data["eps"].toDouble(),
        ctx->needs_input_grad(1) || ctx->needs_input_grad(2));
    std::move(given.begin(), given.end(), result.begin());
    return result;
  }
};

struct GateResidual : torch::autograd::Function<GateResidual> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& gate,
                        const Segments& rows) {
    ctx->save_for_backward({gate.requires_grad() ? y : Tensor(), gate});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->set_materialize_grads(false);
    return kernels_for(x).gate_residual(x.contiguous(), y.contiguous(), dense_rows(gate), rows);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor y = saved[0].defined() ? saved[0].contiguous() : Tensor();
    const bool gate_grad = ctx->needs_input_grad(2);
    result[0] = grads[0];
    if (ctx->needs_input_grad(1) || gate_grad) {
      auto given = kernels_for(saved[1]).gate_residual_backward(
          grads[0].contiguous(), y, dense_rows(saved[1]), saved_rows(ctx), gate_grad);
      result[1] = given[0];
      result[2] = given[1];
    }
    return result;
  }
};

struct GateResidualNormModulate : torch::autograd::Function<GateResidualNormModulate> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& y,
                               const Tensor& gate, const Tensor& shift, const Tensor& scale,
                               const Segments& rows, double eps) {
    auto result = run_gate_residual_norm_modulate(x.contiguous(), y.contiguous(), dense_rows(gate),
                                                  dense_rows(shift), dense_rows(scale), rows, eps,
                                                  kernels_for(x));
    // The sum is held by whatever adds to it next; x would be one more tensor.
    ctx->save_for_backward({result[0], gate.requires_grad() ? y : Tensor(), gate, scale});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return {result[0], result[1]};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(7);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &sum = saved[0], &gate = saved[2], &scale = saved[3];
    const Segments rows = saved_rows(ctx);
    const PointwiseKernels& kernels = kernels_for(sum);
    Tensor grad_sum = grads[0].defined() ? grads[0].contiguous() : Tensor();
    if (grads[1].defined()) {
      auto given = kernels.norm_modulate_backward(
          grads[1].contiguous(), sum, dense_rows(scale), grad_sum, rows,
          ctx->saved_data["eps"].toDouble(), ctx->needs_input_grad(3) || ctx->needs_input_grad(4));
      grad_sum = given[0];
      result[3] = given[1];
      result[4] = given[2];
    }
    result[0] = grad_sum;
    const bool gate_grad = ctx->needs_input_grad(2);
    if (ctx->needs_input_grad(1) || gate_grad) {
      const Tensor y = saved[1].defined() ? saved[1].contiguous() : Tensor();
      auto given = kernels.gate_residual_backward(grad_sum, y, dense_rows(gate), rows, gate_grad);
      result[1] = given[0];
      result[2] = given[1];
    }
    return result;
  }
};

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, double eps) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return kernels_for(x).layer_norm(x.contiguous(), weight.contiguous(), bias.contiguous(), eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(4);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    auto given = kernels_for(saved[0]).layer_norm_backward(
        grads[0].contiguous(), saved[0].contiguous(), saved[1].contiguous(),
        ctx->saved_data["eps"].toDouble(), ctx->needs_input_grad(1) || ctx->needs_input_grad(2));
    std::move(given.begin(), given.end(), result.begin());
    return result;
  }
};

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return kernels_for(x).rms_norm(x.contiguous(), weight.contiguous(), eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    auto given = kernels_for(saved[0]).rms_norm_backward(
        grads[0].contiguous(), saved[0].contiguous(), saved[1].contiguous(),
        ctx->saved_data["eps"].toDouble(), ctx->needs_input_grad(1));
    result[0] = given[0];
    result[1] = given[1];
    return result;
  }
};

// A tensor for autograd, which knows no undefined ones.
Tensor dense_or_undefined(const Tensor& t) {
  return t.defined() ? dense_rows(t) : t;
}

struct RmsNormModulate : torch::autograd::Function<RmsNormModulate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& scale_, const Segments& rows, double eps) {
    const Tensor scale = scale_.value_or(Tensor());
    ctx->save_for_backward({x, weight, scale});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return kernels_for(x).rms_norm_modulate(x.contiguous(), weight.contiguous(),
                                            dense_or_undefined(scale), rows, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    auto given = kernels_for(saved[0]).rms_norm_modulate_backward(
        grads[0].contiguous(), saved[0].contiguous(), saved[1].contiguous(),
        dense_or_undefined(saved[2]), saved_rows(ctx), ctx->saved_data["eps"].toDouble(),
        ctx->needs_input_grad(1), saved[2].defined() && ctx->needs_input_grad(2));
    std::move(given.begin(), given.end(), result.begin());
    return result;
  }
};

struct RmsGateResidual : torch::autograd::Function<RmsGateResidual> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y,
                        const Tensor& weight, const std::optional<Tensor>& gate_,
                        const Segments& rows, double eps) {
    const Tensor gate = gate_.value_or(Tensor());
    ctx->save_for_backward({y, weight, gate});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return kernels_for(x).rms_gate_residual(x.contiguous(), y.contiguous(), weight.contiguous(),
                                            dense_or_undefined(gate), rows, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    result[0] = grads[0];
    auto given = kernels_for(saved[0]).rms_gate_residual_backward(
        grads[0].contiguous(), saved[0].contiguous(), saved[1].contiguous(),
        dense_or_undefined(saved[2]), saved_rows(ctx), ctx->saved_data["eps"].toDouble(),
        ctx->needs_input_grad(2), saved[2].defined() && ctx->needs_input_grad(3));
    std::move(given.begin(), given.end(), result.begin() + 1);
    return result;
  }
};

struct RmsGateResidualNormModulate : torch::autograd::Function<RmsGateResidualNormModulate> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& y,
                               const Tensor& weight, const std::optional<Tensor>& gate_,
                               const Tensor& next_weight, const std::optional<Tensor>& scale_,
                               const Segments& rows, double eps) {
    const Tensor gate = gate_.value_or(Tensor()), scale = scale_.value_or(Tensor());
    ctx->save_for_backward({x, y, weight, gate, next_weight, scale});
    ctx->saved_data["rows"] = rows.tensor();
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    auto both = kernels_for(x).rms_gate_residual_norm_modulate(
        x.contiguous(), y.contiguous(), weight.contiguous(), dense_or_undefined(gate),
        next_weight.contiguous(), dense_or_undefined(scale), rows, eps);
    return {both[0], both[1]};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(8);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor x = saved[0].contiguous(), y = saved[1].contiguous(),
                 weight = saved[2].contiguous(), next_weight = saved[4].contiguous();
    const Tensor gate = dense_or_undefined(saved[3]), scale = dense_or_undefined(saved[5]);
    const Segments rows = saved_rows(ctx);
    const double eps = ctx->saved_data["eps"].toDouble();
    // Inputs that are not there are not counted.
    const size_t of_next_weight = gate.defined() ? 4 : 3;
    const bool gate_grad = gate.defined() && ctx->needs_input_grad(3);
    const bool scale_grad = scale.defined() && ctx->needs_input_grad(of_next_weight + 1);
    if (!grads[1].defined()) {
      result[0] = grads[0];
      auto given = kernels_for(x).rms_gate_residual_backward(
          grads[0].contiguous(), y, weight, gate, rows, eps, ctx->needs_input_grad(2), gate_grad);
      std::move(given.begin(), given.end(), result.begin() + 1);
      return result;
    }
    auto given = kernels_for(x).rms_gate_residual_norm_modulate_backward(
        grads[0].defined() ? grads[0].contiguous() : Tensor(), grads[1].contiguous(), x, y, weight,
        gate, next_weight, scale, rows, eps,
        {ctx->needs_input_grad(2), gate_grad, ctx->needs_input_grad(of_next_weight), scale_grad});
    std::move(given.begin(), given.end(), result.begin());
    return result;
  }
};

struct Swiglu : torch::autograd::Function<Swiglu> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up) {
    ctx->save_for_backward({gate, up});
    ctx->set_materialize_grads(false);
    return at::_unsafe_view(kernels_for(gate).swiglu(flat_rows(gate), flat_rows(up)), gate.sizes());
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(2);
    const variable_list saved = ctx->get_saved_variables();
    auto given = kernels_for(saved[0]).swiglu_backward(flat_rows(grads[0]).contiguous(),
                                                       flat_rows(saved[0]), flat_rows(saved[1]));
    return {given[0].view(saved[0].sizes()), given[1].view(saved[1].sizes())};
  }
};

struct GeluTanh : torch::autograd::Function<GeluTanh> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    ctx->set_materialize_grads(false);
    return run_gelu_tanh(x.contiguous(), kernels_for(x));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(1);
    const Tensor x = ctx->get_saved_variables()[0].contiguous();
    return {kernels_for(x).gelu_tanh_backward(grads[0].contiguous(), x)};
  }
};

struct ChannelNorm : torch::autograd::Function<ChannelNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& gamma, bool silu) {
    ctx->save_for_backward({x, gamma});
    ctx->saved_data["silu"] = silu;
    ctx->set_materialize_grads(false);
    return channels_of(kernels_for(x).channel_norm(channel_rows(x), gamma.contiguous(), silu), x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(3);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor& x = saved[0];
    auto given = kernels_for(x).channel_norm_backward(
        channel_rows(grads[0]), channel_rows(x), saved[1].contiguous(),
        ctx->saved_data["silu"].toBool(), ctx->needs_input_grad(1));
    result[0] = channels_of(given[0], x);
    result[1] = given[1];
    return result;
  }
};

}  // namespace

Tensor norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                     const Segments& rows, double eps) {
  check(is_packed(x, rows) && modulates(scale, x, rows) && is_alike(shift, scale), "norm_modulate",
        {x, shift, scale});
  if (!is_fused(x, &PointwiseKernels::norm_modulate, x.size(1)))
    return composed::norm_modulate(x, shift, scale, rows, eps);
  if (needs_graph({x, shift, scale})) return NormModulate::apply(x, shift, scale, rows, eps);
  return run_norm_modulate(x.contiguous(), dense_rows(shift), dense_rows(scale), rows, eps,
                           kernels_for(x));
}

Tensor gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Segments& rows) {
  check(is_packed(x, rows) && is_alike(x, y) && modulates(gate, x, rows), "gate_residual",
        {x, y, gate});
  if (!is_fused(x, &PointwiseKernels::gate_residual))
    return composed::gate_residual(x, y, gate, rows);
  if (needs_graph({x, y, gate})) return GateResidual::apply(x, y, gate, rows);
  return kernels_for(x).gate_residual(x.contiguous(), y.contiguous(), dense_rows(gate), rows);
}

std::tuple<Tensor, Tensor> gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                       const Tensor& gate, const Tensor& shift,
                                                       const Tensor& scale, const Segments& rows,
                                                       double eps) {
  check(is_packed(x, rows) && is_alike(x, y) && modulates(gate, x, rows) &&
            modulates(scale, x, rows) && is_alike(shift, scale),
        "gate_residual_norm_modulate", {x, y, gate, shift, scale});
  if (!is_fused(x, &PointwiseKernels::gate_residual_norm_modulate, x.size(1))) {
    const Tensor sum = composed::gate_residual(x, y, gate, rows);
    return {sum, composed::norm_modulate(sum, shift, scale, rows, eps)};
  }
  if (needs_graph({x, y, gate, shift, scale})) {
    variable_list both = GateResidualNormModulate::apply(x, y, gate, shift, scale, rows, eps);
    return {both[0], both[1]};
  }
  auto both = run_gate_residual_norm_modulate(x.contiguous(), y.contiguous(), dense_rows(gate),
                                              dense_rows(shift), dense_rows(scale), rows, eps,
                                              kernels_for(x));
  return {both[0], both[1]};
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(x.dim() >= 1 && is_width_of(weight, x) && is_alike(weight, bias), "layer_norm",
        {x, weight, bias});
  if (!is_fused(x, &PointwiseKernels::layer_norm, x.size(-1)))
    return composed::layer_norm(x, weight, bias, eps);
  if (needs_graph({x, weight, bias})) return LayerNorm::apply(x, weight, bias, eps);
  return kernels_for(x).layer_norm(x.contiguous(), weight.contiguous(), bias.contiguous(), eps);
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check(x.dim() >= 1 && is_width_of(weight, x), "rms_norm", {x, weight});
  if (!is_fused(x, &PointwiseKernels::rms_norm, x.size(-1)))
    return composed::rms_norm(x, weight, eps);
  const Tensor cast = weight.to(x.scalar_type());
  if (needs_graph({x, cast})) return RmsNorm::apply(x, cast, eps);
  return kernels_for(x).rms_norm(x.contiguous(), cast.contiguous(), eps);
}

Tensor rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                         const Segments& rows, double eps) {
  check(is_packed(x, rows) && is_width_of(weight, x) &&
            (!scale.defined() || modulates(scale, x, rows)),
        "rms_norm_modulate", {x, weight});
  if (!is_fused(x, &PointwiseKernels::rms_norm_modulate, x.size(1)))
    return composed::rms_norm_modulate(x, weight, scale, rows, eps);
  const Tensor cast = weight.to(x.scalar_type());
  if (needs_graph({x, cast, scale})) {
    return RmsNormModulate::apply(x, cast, as_optional(scale), rows, eps);
  }
  return kernels_for(x).rms_norm_modulate(x.contiguous(), cast.contiguous(),
                                          dense_or_undefined(scale), rows, eps);
}

Tensor rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                         const Segments& rows, double eps) {
  check(is_packed(x, rows) && is_alike(x, y) && is_width_of(weight, x) &&
            (!gate.defined() || modulates(gate, x, rows)),
        "rms_gate_residual", {x, y, weight});
  if (!is_fused(x, &PointwiseKernels::rms_gate_residual, x.size(1)))
    return composed::rms_gate_residual(x, y, weight, gate, rows, eps);
  const Tensor cast = weight.to(x.scalar_type());
  if (needs_graph({x, y, cast, gate})) {
    return RmsGateResidual::apply(x, y, cast, as_optional(gate), rows, eps);
  }
  return kernels_for(x).rms_gate_residual(x.contiguous(), y.contiguous(), cast.contiguous(),
                                          dense_or_undefined(gate), rows, eps);
}

std::tuple<Tensor, Tensor> rms_gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                           const Tensor& weight, const Tensor& gate,
                                                           const Tensor& next_weight,
                                                           const Tensor& scale,
                                                           const Segments& rows, double eps) {
  check(is_packed(x, rows) && is_alike(x, y) && is_width_of(weight, x) &&
            is_width_of(next_weight, x) && (!gate.defined() || modulates(gate, x, rows)) &&
            (!scale.defined() || modulates(scale, x, rows)),
        "rms_gate_residual_norm_modulate", {x, y, weight, next_weight});
  if (!is_fused(x, &PointwiseKernels::rms_gate_residual_norm_modulate, x.size(1))) {
    const Tensor sum = composed::rms_gate_residual(x, y, weight, gate, rows, eps);
    return {sum, composed::rms_norm_modulate(sum, next_weight, scale, rows, eps)};
  }
  const auto type = x.scalar_type();
  const Tensor first = weight.to(type), next = next_weight.to(type);
  if (needs_graph({x, y, first, gate, next, scale})) {
    variable_list both = RmsGateResidualNormModulate::apply(x, y, first, as_optional(gate), next,
                                                            as_optional(scale), rows, eps);
    return {both[0], both[1]};
  }
  auto both = kernels_for(x).rms_gate_residual_norm_modulate(
      x.contiguous(), y.contiguous(), first.contiguous(), dense_or_undefined(gate),
      next.contiguous(), dense_or_undefined(scale), rows, eps);
  return {both[0], both[1]};
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  check(gate.dim() >= 1 && is_alike(gate, up), "swiglu", {gate, up});
  if (!is_fused(gate, &PointwiseKernels::swiglu)) return composed::swiglu(gate, up);
  if (needs_graph({gate, up})) return Swiglu::apply(gate, up);
  return kernels_for(gate).swiglu(flat_rows(gate), flat_rows(up)).view(gate.sizes());
}

Tensor gelu_tanh(const Tensor& x) {
  if (!is_fused(x, &PointwiseKernels::gelu_tanh)) return composed::gelu_tanh(x);
  if (needs_graph({x})) return GeluTanh::apply(x);
  return run_gelu_tanh(x.contiguous(), kernels_for(x));
}

Tensor channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  check(x.dim() == 4 && gamma.dim() == 1 && gamma.size(0) == x.size(1), "channel_norm", {x, gamma});
  if (!is_fused(x, &PointwiseKernels::channel_norm, x.size(1)))
    return composed::channel_norm(x, gamma, silu);
  const Tensor cast = gamma.to(x.scalar_type());
  if (needs_graph({x, cast})) return ChannelNorm::apply(x, cast, silu);
  return channels_of(kernels_for(x).channel_norm(channel_rows(x), cast.contiguous(), silu), x);
}

}  // namespace atelier::ops
