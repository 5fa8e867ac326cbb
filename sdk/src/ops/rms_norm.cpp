#include "ops/rms_norm.h"

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/gate_residual.h"
#include "ops/per_sample.h"
#include "ops/pointwise_checks.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<RmsNormKernels> rms_norm_kernels("rms_norm");
constinit KernelTable<RmsNormModulateKernels> rms_norm_modulate_kernels("rms_norm_modulate");
constinit KernelTable<RmsGateResidualKernels> rms_gate_residual_kernels("rms_gate_residual");
constinit KernelTable<RmsGateResidualNormModulateKernels> rms_gate_residual_norm_modulate_kernels(
    "rms_gate_residual_norm_modulate");

namespace {

// --- composed ---

Tensor composed_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor v = x.to(wide(x));
  const Tensor normal = v * at::rsqrt(v.square().mean(-1, true) + eps);
  return normal.to(x.scalar_type()) * weight.to(x.scalar_type());
}

Tensor composed_rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                                  const Segments& rows, double eps) {
  const Tensor normal = composed_rms_norm(x, weight, eps);
  if (!scale.defined()) return normal;
  const Tensor scaled = per_sample(
      rows, [](const Tensor& n, const Tensor& s) { return n * (1 + s); }, normal, scale);
  return scaled.to(x.scalar_type());
}

Tensor composed_rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight,
                                  const Tensor& gate, const Segments& rows, double eps) {
  const Tensor normal = composed_rms_norm(y, weight, eps);
  return gate.defined() ? composed_gate_residual(x, normal, at::tanh(gate), rows) : x + normal;
}

// --- by kernels ---

Tensor run_rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  Tensor out = packed_like(x);
  rms_norm_kernels.run(&RmsNormKernels::forward, x.contiguous(), weight.contiguous(), eps, out);
  return out;
}

Tensor run_rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                             const Segments& rows, double eps) {
  Tensor out = packed_like(x);
  rms_norm_modulate_kernels.run(&RmsNormModulateKernels::forward, x.contiguous(),
                                weight.contiguous(), dense_or_undefined(scale), rows, eps, out);
  return out;
}

Tensor run_rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight,
                             const Tensor& gate, const Segments& rows, double eps) {
  Tensor out = packed_like(x);
  rms_gate_residual_kernels.run(&RmsGateResidualKernels::forward, x.contiguous(), y.contiguous(),
                                weight.contiguous(), dense_or_undefined(gate), rows, eps, out);
  return out;
}

// {y, weight, gate}
std::array<Tensor, 3> rms_gate_residual_backward(const Tensor& grad, const Tensor& y,
                                                 const Tensor& weight, const Tensor& gate,
                                                 const Segments& rows, double eps, bool weight_grad,
                                                 bool gate_grad) {
  Tensor grad_y = packed_like(y), grad_weight = packed_if(weight_grad, weight),
         grad_gate = packed_if(gate_grad, gate);
  rms_gate_residual_kernels.run(&RmsGateResidualKernels::backward, grad.contiguous(),
                                y.contiguous(), weight.contiguous(), dense_or_undefined(gate), rows,
                                eps, grad_y, grad_weight, grad_gate);
  return {grad_y, grad_weight, grad_gate};
}

std::array<Tensor, 2> run_rms_gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                          const Tensor& weight, const Tensor& gate,
                                                          const Tensor& next_weight,
                                                          const Tensor& scale, const Segments& rows,
                                                          double eps) {
  Tensor sum = packed_like(x), out = packed_like(x);
  rms_gate_residual_norm_modulate_kernels.run(&RmsGateResidualNormModulateKernels::forward,
                                              x.contiguous(), y.contiguous(), weight.contiguous(),
                                              dense_or_undefined(gate), next_weight.contiguous(),
                                              dense_or_undefined(scale), rows, eps, sum, out);
  return {sum, out};
}

// --- autograd ---

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, double eps) {
    save(ctx, {x, weight}, eps);
    return run_rms_norm(x, weight, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(3);
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    Tensor grad_x = packed_like(x), grad_weight = packed_if(ctx->needs_input_grad(1), weight);
    rms_norm_kernels.run(&RmsNormKernels::backward, grads[0].contiguous(), x.contiguous(),
                         weight.contiguous(), saved_eps(ctx), grad_x, grad_weight);
    return {grad_x, grad_weight, {}};
  }
};

struct RmsNormModulate : torch::autograd::Function<RmsNormModulate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const std::optional<Tensor>& scale_, const Segments& rows, double eps) {
    const Tensor scale = scale_.value_or(Tensor());
    save(ctx, {x, weight, scale}, rows, eps);
    return run_rms_norm_modulate(x, weight, scale, rows, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(5);
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &scale = saved[2];
    Tensor grad_x = packed_like(x), grad_weight = packed_if(ctx->needs_input_grad(1), weight),
           grad_scale = packed_if(scale.defined() && ctx->needs_input_grad(2), scale);
    rms_norm_modulate_kernels.run(&RmsNormModulateKernels::backward, grads[0].contiguous(),
                                  x.contiguous(), weight.contiguous(), dense_or_undefined(scale),
                                  saved_rows(ctx), saved_eps(ctx), grad_x, grad_weight, grad_scale);
    return {grad_x, grad_weight, grad_scale, {}, {}};
  }
};

struct RmsGateResidual : torch::autograd::Function<RmsGateResidual> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y,
                        const Tensor& weight, const std::optional<Tensor>& gate_,
                        const Segments& rows, double eps) {
    const Tensor gate = gate_.value_or(Tensor());
    save(ctx, {y, weight, gate}, rows, eps);
    return run_rms_gate_residual(x, y, weight, gate, rows, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    result[0] = grads[0];
    auto given = rms_gate_residual_backward(grads[0], saved[0], saved[1], saved[2], saved_rows(ctx),
                                            saved_eps(ctx), ctx->needs_input_grad(2),
                                            saved[2].defined() && ctx->needs_input_grad(3));
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
    save(ctx, {x, y, weight, gate, next_weight, scale}, rows, eps);
    auto both =
        run_rms_gate_residual_norm_modulate(x, y, weight, gate, next_weight, scale, rows, eps);
    return {both[0], both[1]};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(8);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &y = saved[1], &weight = saved[2], &gate = saved[3],
                 &next_weight = saved[4], &scale = saved[5];
    const double eps = saved_eps(ctx);
    // Inputs that are not there are not counted.
    const size_t of_next_weight = gate.defined() ? 4 : 3;
    const bool gate_grad = gate.defined() && ctx->needs_input_grad(3);
    const bool scale_grad = scale.defined() && ctx->needs_input_grad(of_next_weight + 1);
    if (!grads[1].defined()) {
      result[0] = grads[0];
      auto given = rms_gate_residual_backward(grads[0], y, weight, gate, saved_rows(ctx), eps,
                                              ctx->needs_input_grad(2), gate_grad);
      std::move(given.begin(), given.end(), result.begin() + 1);
      return result;
    }
    RmsGateResidualNormModulateGradients to = {
        packed_like(x),
        packed_like(y),
        packed_if(ctx->needs_input_grad(2), weight),
        packed_if(gate_grad, gate),
        packed_if(ctx->needs_input_grad(of_next_weight), next_weight),
        packed_if(scale_grad, scale)};
    rms_gate_residual_norm_modulate_kernels.run(
        &RmsGateResidualNormModulateKernels::backward, grads[1].contiguous(),
        grads[0].defined() ? grads[0].contiguous() : Tensor(), x.contiguous(), y.contiguous(),
        weight.contiguous(), dense_or_undefined(gate), next_weight.contiguous(),
        dense_or_undefined(scale), saved_rows(ctx), eps, to);
    return {to.x, to.y, to.weight, to.gate, to.next_weight, to.scale, {}, {}};
  }
};

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  check(x.dim() >= 1 && is_width_of(weight, x), "rms_norm", {x, weight});
  if (!rms_norm_kernels.takes(x, x.size(-1))) return composed_rms_norm(x, weight, eps);
  const Tensor cast = weight.to(x.scalar_type());
  if (needs_graph({x, cast})) return RmsNorm::apply(x, cast, eps);
  return run_rms_norm(x, cast, eps);
}

Tensor rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                         const Segments& rows, double eps) {
  check(is_packed(x, rows) && is_width_of(weight, x) &&
            (!scale.defined() || modulates(scale, x, rows)),
        "rms_norm_modulate", {x, weight});
  if (!rms_norm_modulate_kernels.takes(x, x.size(1)))
    return composed_rms_norm_modulate(x, weight, scale, rows, eps);
  const Tensor cast = weight.to(x.scalar_type());
  if (needs_graph({x, cast, scale}))
    return RmsNormModulate::apply(x, cast, as_optional(scale), rows, eps);
  return run_rms_norm_modulate(x, cast, scale, rows, eps);
}

Tensor rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                         const Segments& rows, double eps) {
  check(is_packed(x, rows) && is_alike(x, y) && is_width_of(weight, x) &&
            (!gate.defined() || modulates(gate, x, rows)),
        "rms_gate_residual", {x, y, weight});
  if (!rms_gate_residual_kernels.takes(x, x.size(1)))
    return composed_rms_gate_residual(x, y, weight, gate, rows, eps);
  const Tensor cast = weight.to(x.scalar_type());
  if (needs_graph({x, y, cast, gate}))
    return RmsGateResidual::apply(x, y, cast, as_optional(gate), rows, eps);
  return run_rms_gate_residual(x, y, cast, gate, rows, eps);
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
  if (!rms_gate_residual_norm_modulate_kernels.takes(x, x.size(1))) {
    const Tensor sum = composed_rms_gate_residual(x, y, weight, gate, rows, eps);
    return {sum, composed_rms_norm_modulate(sum, next_weight, scale, rows, eps)};
  }
  const auto type = x.scalar_type();
  const Tensor first = weight.to(type), next = next_weight.to(type);
  if (needs_graph({x, y, first, gate, next, scale})) {
    variable_list both = RmsGateResidualNormModulate::apply(x, y, first, as_optional(gate), next,
                                                            as_optional(scale), rows, eps);
    return {both[0], both[1]};
  }
  auto both = run_rms_gate_residual_norm_modulate(x, y, first, gate, next, scale, rows, eps);
  return {both[0], both[1]};
}

}  // namespace atelier::ops
