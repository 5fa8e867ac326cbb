#include "ops/layer_norm.h"

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/gate_residual.h"
#include "ops/per_sample.h"
#include "ops/pointwise_checks.h"
#include "ops/shared_codes.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<LayerNormKernels> layer_norm_kernels("layer_norm");
constinit KernelTable<NormModulateKernels> norm_modulate_kernels("norm_modulate");
constinit KernelTable<GateResidualNormModulateKernels> gate_residual_norm_modulate_kernels(
    "gate_residual_norm_modulate");

namespace {

// --- composed ---

// The layer norm over the last axis.
Tensor normalised(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  // LibTorch has none of meta tensors: this allocates as much.
  return x.is_meta() ? x * 1 : at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
}

Tensor composed_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const auto type = wide(x);
  return normalised(x.to(type), weight.to(type), bias.to(type), eps).to(x.scalar_type());
}

Tensor composed_norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                              const Segments& rows, double eps) {
  const Tensor normal = normalised(x.to(scale.scalar_type()), {}, {}, eps);
  const Tensor modulated = per_sample(
      rows, [](const Tensor& n, const Tensor& a, const Tensor& b) { return n * (1 + b) + a; },
      normal, shift, scale);
  return modulated.to(x.scalar_type());
}

// --- by kernels ---

Tensor run_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  Tensor out = packed_like(x);
  layer_norm_kernels.run(&LayerNormKernels::forward, x.contiguous(), weight.contiguous(),
                         bias.contiguous(), eps, out);
  return out;
}

Tensor run_norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                         const Segments& rows, double eps) {
  using Kernels = NormModulateKernels;
  Tensor out = packed_like(x);
  if (auto codes = wanted_codes(norm_modulate_kernels, out, /*is_for_one=*/false)) {
    norm_modulate_kernels.run(&Kernels::forward_codes, x.contiguous(), dense_rows(shift),
                              dense_rows(scale), rows, eps, out, *codes);
    SharedCodes::of_thread().put(out, *codes, /*is_for_one=*/false);
  } else {
    norm_modulate_kernels.run(&Kernels::forward, x.contiguous(), dense_rows(shift),
                              dense_rows(scale), rows, eps, out);
  }
  return out;
}

// {x, shift, scale}; `modulation`: whether the last two are wanted. `added` may be undefined.
std::array<Tensor, 3> norm_modulate_backward(const Tensor& grad, const Tensor& x,
                                             const Tensor& scale, const Tensor& added,
                                             const Segments& rows, double eps, bool modulation) {
  Tensor grad_x = packed_like(x), grad_shift = packed_if(modulation, scale),
         grad_scale = packed_if(modulation, scale);
  norm_modulate_kernels.run(&NormModulateKernels::backward, grad.contiguous(), x.contiguous(),
                            dense_rows(scale), added, rows, eps, grad_x, grad_shift, grad_scale);
  return {grad_x, grad_shift, grad_scale};
}

std::array<Tensor, 2> run_gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                      const Tensor& gate, const Tensor& shift,
                                                      const Tensor& scale, const Segments& rows,
                                                      double eps) {
  using Kernels = GateResidualNormModulateKernels;
  const auto& table = gate_residual_norm_modulate_kernels;
  Tensor sum = packed_like(x), out = packed_like(x);
  if (auto codes = wanted_codes(table, out, /*is_for_one=*/false)) {
    table.run(&Kernels::forward_codes, x.contiguous(), y.contiguous(), dense_rows(gate),
              dense_rows(shift), dense_rows(scale), rows, eps, sum, out, *codes);
    SharedCodes::of_thread().put(out, *codes, /*is_for_one=*/false);
  } else {
    table.run(&Kernels::forward, x.contiguous(), y.contiguous(), dense_rows(gate),
              dense_rows(shift), dense_rows(scale), rows, eps, sum, out);
  }
  return {sum, out};
}

// --- autograd ---

struct LayerNorm : torch::autograd::Function<LayerNorm> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, double eps) {
    save(ctx, {x, weight}, eps);
    return run_layer_norm(x, weight, bias, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return variable_list(4);
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const bool weight_grad = ctx->needs_input_grad(1) || ctx->needs_input_grad(2);
    Tensor grad_x = packed_like(x), grad_weight = packed_if(weight_grad, weight),
           grad_bias = packed_if(weight_grad, weight);
    layer_norm_kernels.run(&LayerNormKernels::backward, grads[0].contiguous(), x.contiguous(),
                           weight.contiguous(), saved_eps(ctx), grad_x, grad_weight, grad_bias);
    return {grad_x, grad_weight, grad_bias, {}};
  }
};

struct NormModulate : torch::autograd::Function<NormModulate> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& shift,
                        const Tensor& scale, const Segments& rows, double eps) {
    save(ctx, {x, scale}, rows, eps);
    return run_norm_modulate(x, shift, scale, rows, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(5);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    auto given = norm_modulate_backward(grads[0], saved[0], saved[1], Tensor(), saved_rows(ctx),
                                        saved_eps(ctx),
                                        ctx->needs_input_grad(1) || ctx->needs_input_grad(2));
    std::move(given.begin(), given.end(), result.begin());
    return result;
  }
};

struct GateResidualNormModulate : torch::autograd::Function<GateResidualNormModulate> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& y,
                               const Tensor& gate, const Tensor& shift, const Tensor& scale,
                               const Segments& rows, double eps) {
    auto result = run_gate_residual_norm_modulate(x, y, gate, shift, scale, rows, eps);
    // The sum is held by whatever adds to it next; x would be one more tensor.
    save(ctx, {result[0], gate.requires_grad() ? y : Tensor(), gate, scale}, rows, eps);
    return {result[0], result[1]};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(7);
    if (!grads[0].defined() && !grads[1].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &sum = saved[0], &gate = saved[2], &scale = saved[3];
    const Segments rows = saved_rows(ctx);
    Tensor grad_sum = grads[0].defined() ? grads[0].contiguous() : Tensor();
    if (grads[1].defined()) {
      auto given = norm_modulate_backward(grads[1], sum, scale, grad_sum, rows, saved_eps(ctx),
                                          ctx->needs_input_grad(3) || ctx->needs_input_grad(4));
      grad_sum = given[0];
      result[3] = given[1];
      result[4] = given[2];
    }
    result[0] = grad_sum;
    const bool gate_grad = ctx->needs_input_grad(2);
    if (ctx->needs_input_grad(1) || gate_grad) {
      auto given = gate_residual_backward(grad_sum, saved[1], gate, rows, gate_grad);
      std::move(given.begin(), given.end(), result.begin() + 1);
    }
    return result;
  }
};

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  check(x.dim() >= 1 && is_width_of(weight, x) && is_alike(weight, bias), "layer_norm",
        {x, weight, bias});
  if (!layer_norm_kernels.takes(x, x.size(-1))) return composed_layer_norm(x, weight, bias, eps);
  if (needs_graph({x, weight, bias})) return LayerNorm::apply(x, weight, bias, eps);
  return run_layer_norm(x, weight, bias, eps);
}

Tensor norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                     const Segments& rows, double eps) {
  if (!shift.defined()) return norm_modulate(x, at::zeros_like(scale), scale, rows, eps);
  check(is_packed(x, rows) && modulates(scale, x, rows) && is_alike(shift, scale), "norm_modulate",
        {x, shift, scale});
  if (!norm_modulate_kernels.takes(x, x.size(1)))
    return composed_norm_modulate(x, shift, scale, rows, eps);
  if (needs_graph({x, shift, scale})) return NormModulate::apply(x, shift, scale, rows, eps);
  return run_norm_modulate(x, shift, scale, rows, eps);
}

std::tuple<Tensor, Tensor> gate_residual_norm_modulate(const Tensor& x, const Tensor& y,
                                                       const Tensor& gate, const Tensor& shift,
                                                       const Tensor& scale, const Segments& rows,
                                                       double eps) {
  check(is_packed(x, rows) && is_alike(x, y) && modulates(gate, x, rows) &&
            modulates(scale, x, rows) && is_alike(shift, scale),
        "gate_residual_norm_modulate", {x, y, gate, shift, scale});
  if (!gate_residual_norm_modulate_kernels.takes(x, x.size(1))) {
    const Tensor sum = composed_gate_residual(x, y, gate, rows);
    return {sum, composed_norm_modulate(sum, shift, scale, rows, eps)};
  }
  if (needs_graph({x, y, gate, shift, scale})) {
    variable_list both = GateResidualNormModulate::apply(x, y, gate, shift, scale, rows, eps);
    return {both[0], both[1]};
  }
  auto both = run_gate_residual_norm_modulate(x, y, gate, shift, scale, rows, eps);
  return {both[0], both[1]};
}

}  // namespace atelier::ops
