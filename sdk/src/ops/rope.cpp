// Norms of heads and their rotation, of one stream or of two that are joined.
#include <torch/csrc/autograd/custom_function.h>

#include "atelier/ops/pointwise.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"
#include "ops/pointwise_composed.h"
#include "ops/pointwise_kernels.h"

namespace atelier::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_rope(const char* op, const Tensor& x, const Tensor& weight, const Tensor& cos,
                const Tensor& sin) {
  const bool weight_fits =
      !weight.defined() || (x.dim() == 3 && weight.dim() == 1 && weight.size(0) == x.size(2));
  check(x.dim() == 3 && x.size(2) % 2 == 0 && is_alike(cos, sin) &&
            cos.sizes() == at::IntArrayRef{x.size(0), x.size(2) / 2} && weight_fits,
        op, {x, cos, sin});
}

Tensor rope_weight(const Tensor& weight, const Tensor& x) {
  return weight.defined() ? weight.to(x.scalar_type()).contiguous() : Tensor();
}

Tensor run_norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                     RopeLayout layout, double eps) {
  Tensor out = at::empty(x.sizes(), x.options());
  kernels_for(x).norm_rope(dense_rows(x), weight, cos, sin, layout, eps,
                           StreamRows::alone(x.size(0)), out);
  return out;
}

Tensor run_joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout,
                            double eps) {
  const PointwiseKernels& kernels = kernels_for(a.x);
  auto sizes = a.x.sizes().vec();
  sizes[0] += b.x.size(0);
  Tensor out = at::empty(sizes, a.x.options());
  kernels.norm_rope(dense_rows(a.x), a.weight, a.cos, a.sin, layout, eps, {a.rows, b.rows, true},
                    out);
  kernels.norm_rope(dense_rows(b.x), b.weight, b.cos, b.sin, layout, eps, {b.rows, a.rows, false},
                    out);
  return out;
}

struct NormRope : torch::autograd::Function<NormRope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& weight,
                        const Tensor& cos, const Tensor& sin, RopeLayout layout, double eps) {
    const Tensor scale = weight.value_or(Tensor());
    // Without a norm the gradient does not depend on x.
    ctx->save_for_backward({weight ? x : Tensor(), scale, cos, sin});
    ctx->saved_data["layout"] = static_cast<int64_t>(layout);
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return run_norm_rope(x, scale, cos, sin, layout, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor x = saved[0].defined() ? dense_rows(saved[0]) : Tensor();
    const bool weight_grad = saved[1].defined() && ctx->needs_input_grad(1);
    auto given = kernels_for(grads[0]).norm_rope_backward(
        grads[0].contiguous(), x, saved[1], saved[2], saved[3],
        static_cast<RopeLayout>(ctx->saved_data["layout"].toInt()),
        ctx->saved_data["eps"].toDouble(), StreamRows::alone(grads[0].size(0)), weight_grad);
    result[0] = given[0];
    result[1] = given[1];
    return result;
  }
};

struct JoinedNormRope : torch::autograd::Function<JoinedNormRope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a_x, const Tensor& b_x,
                        const std::optional<Tensor>& a_weight,
                        const std::optional<Tensor>& b_weight, const RopeStream& a,
                        const RopeStream& b, RopeLayout layout, double eps) {
    ctx->save_for_backward({a_weight ? a_x : Tensor(), a_weight.value_or(Tensor()), a.cos, a.sin,
                            b_weight ? b_x : Tensor(), b_weight.value_or(Tensor()), b.cos, b.sin});
    ctx->saved_data["a"] = a.rows.tensor();
    ctx->saved_data["b"] = b.rows.tensor();
    ctx->saved_data["layout"] = static_cast<int64_t>(layout);
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    return run_joined_norm_rope(a, b, layout, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(8);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    const Segments rows[] = {Segments::from_tensor(ctx->saved_data["a"].toTensor()),
                             Segments::from_tensor(ctx->saved_data["b"].toTensor())};
    const Tensor grad = grads[0].contiguous();
    size_t edge = 2;  // inputs that are not there are not counted
    for (const size_t i : {0, 1}) {
      const Tensor &x = saved[4 * i], &weight = saved[4 * i + 1];
      const bool weight_grad = weight.defined() && ctx->needs_input_grad(edge++);
      if (!ctx->needs_input_grad(i) && !weight_grad) continue;
      auto given = kernels_for(grad).norm_rope_backward(
          grad, x.defined() ? dense_rows(x) : x, weight, saved[4 * i + 2], saved[4 * i + 3],
          static_cast<RopeLayout>(ctx->saved_data["layout"].toInt()),
          ctx->saved_data["eps"].toDouble(), {rows[i], rows[1 - i], i == 0}, weight_grad);
      result[i] = given[0];
      result[2 + i] = given[1];
    }
    return result;
  }
};

}  // namespace

Tensor norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                 RopeLayout layout, double eps) {
  check_rope("norm_rope", x, weight, cos, sin);
  if (!is_fused(x, &PointwiseKernels::norm_rope, x.size(2)))
    return composed::norm_rope(x, weight, cos, sin, layout, eps);
  const Tensor scale = rope_weight(weight, x);
  const Tensor wide_cos = cos.to(wide(x)).contiguous(), wide_sin = sin.to(wide(x)).contiguous();
  if (needs_graph({x, scale}))
    return NormRope::apply(x, as_optional(scale), wide_cos, wide_sin, layout, eps);
  return run_norm_rope(x, scale, wide_cos, wide_sin, layout, eps);
}

Tensor joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout, double eps) {
  for (const RopeStream* s : {&a, &b})
    check_rope("joined_norm_rope", s->x, s->weight, s->cos, s->sin);
  check(a.x.scalar_type() == b.x.scalar_type() && a.x.sizes().slice(1) == b.x.sizes().slice(1) &&
            a.x.size(0) == a.rows.total() && b.x.size(0) == b.rows.total() &&
            a.rows.count() == b.rows.count(),
        "joined_norm_rope", {a.x, b.x});
  if (!is_fused(a.x, &PointwiseKernels::norm_rope, a.x.size(2)))
    return composed::joined_norm_rope(a, b, layout, eps);
  const auto prepared = [](const RopeStream& s) {
    const auto type = wide(s.x);
    return RopeStream{s.x, rope_weight(s.weight, s.x), s.cos.to(type).contiguous(),
                      s.sin.to(type).contiguous(), s.rows};
  };
  const RopeStream first = prepared(a), second = prepared(b);
  if (needs_graph({a.x, b.x, first.weight, second.weight})) {
    return JoinedNormRope::apply(a.x, b.x, as_optional(first.weight), as_optional(second.weight),
                                 first, second, layout, eps);
  }
  return run_joined_norm_rope(first, second, layout, eps);
}

}  // namespace atelier::ops
