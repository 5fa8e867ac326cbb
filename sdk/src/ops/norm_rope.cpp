#include "ops/norm_rope.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_checks.h"

namespace atelier::ops {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constinit KernelTable<NormRopeKernels> norm_rope_kernels("norm_rope");

namespace {

void check_rope(const char* op, const Tensor& x, const Tensor& weight, const Tensor& cos,
                const Tensor& sin) {
  const bool weight_fits =
      !weight.defined() || (x.dim() == 3 && weight.dim() == 1 && weight.size(0) == x.size(2));
  check(x.dim() == 3 && x.size(2) % 2 == 0 && is_alike(cos, sin) &&
            cos.sizes() == at::IntArrayRef{x.size(0), x.size(2) / 2} && weight_fits,
        op, {x, cos, sin});
}

// Room for the rows of both streams.
Tensor joined_room(const RopeStream& a, const RopeStream& b) {
  auto sizes = a.x.sizes().vec();
  sizes[0] += b.x.size(0);
  return at::empty(sizes, a.x.options());
}

// --- composed ---

// Heads before they are rounded to the dtype of x.
Tensor wide_norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                      RopeLayout layout, double eps) {
  Tensor v = x.to(wide(x));
  if (weight.defined()) {
    v = v * at::rsqrt(v.square().mean(-1, true) + eps) * weight.to(v.scalar_type());
  }
  const int64_t half = x.size(2) / 2;
  const bool halves = layout == RopeLayout::kHalves;
  const Tensor c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const Tensor pairs = v.unflatten(2, halves ? at::IntArrayRef{2, half} : at::IntArrayRef{half, 2});
  const int64_t axis = halves ? 2 : 3;
  const Tensor a = pairs.select(axis, 0), b = pairs.select(axis, 1);
  return at::stack({a * c - b * s, a * s + b * c}, axis).flatten(2);
}

// Puts the rows of a stream to their places in `joined`, rounded to its dtype.
void put_rows(const Tensor& rows, const StreamRows& stream, Tensor& joined) {
  for (int64_t s = 0; s < stream.rows.count(); ++s) {
    const int64_t first = stream.rows.offset(s), count = stream.rows.length(s);
    joined.narrow(0, first + stream.before(s), count).copy_(rows.narrow(0, first, count));
  }
}

Tensor composed_norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos,
                          const Tensor& sin, RopeLayout layout, double eps) {
  return wide_norm_rope(x, weight, cos, sin, layout, eps).to(x.scalar_type());
}

Tensor composed_joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout,
                                 double eps) {
  if (needs_graph({a.x, a.weight, b.x, b.weight})) {
    return join_rows(composed_norm_rope(a.x, a.weight, a.cos, a.sin, layout, eps), a.rows,
                     composed_norm_rope(b.x, b.weight, b.cos, b.sin, layout, eps), b.rows);
  }
  Tensor joined = joined_room(a, b);
  put_rows(wide_norm_rope(a.x, a.weight, a.cos, a.sin, layout, eps), {a.rows, b.rows, true},
           joined);
  put_rows(wide_norm_rope(b.x, b.weight, b.cos, b.sin, layout, eps), {b.rows, a.rows, false},
           joined);
  return joined;
}

// --- by kernels ---

Tensor rope_weight(const Tensor& weight, const Tensor& x) {
  return weight.defined() ? weight.to(x.scalar_type()).contiguous() : Tensor();
}

// The rows of `s` to their places in `out`.
void run_stream(const RopeStream& s, const Segments& others, bool is_first, RopeLayout layout,
                double eps, Tensor& out) {
  norm_rope_kernels.run(&NormRopeKernels::forward, dense_rows(s.x), s.weight, s.cos, s.sin, layout,
                        eps, StreamRows{s.rows, others, is_first}, out);
}

Tensor run_norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                     RopeLayout layout, double eps) {
  Tensor out = packed_like(x);
  norm_rope_kernels.run(&NormRopeKernels::forward, dense_rows(x), weight, cos, sin, layout, eps,
                        StreamRows::alone(x.size(0)), out);
  return out;
}

Tensor run_joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout,
                            double eps) {
  Tensor out = joined_room(a, b);
  run_stream(a, b.rows, /*is_first=*/true, layout, eps, out);
  run_stream(b, a.rows, /*is_first=*/false, layout, eps, out);
  return out;
}

// {x, weight}; `grad` is that of what the stream was written to.
std::array<Tensor, 2> norm_rope_backward(AutogradContext* ctx, const Tensor& grad,
                                         at::ArrayRef<Tensor> saved, const StreamRows& stream,
                                         bool weight_grad) {
  const Tensor &x = saved[0], &weight = saved[1];
  Tensor grad_x = at::empty({stream.rows.total(), grad.size(1), grad.size(2)}, grad.options());
  Tensor grad_weight = packed_if(weight_grad, weight);
  norm_rope_kernels.run(&NormRopeKernels::backward, grad, dense_or_undefined(x), weight, saved[2],
                        saved[3], static_cast<RopeLayout>(ctx->saved_data["layout"].toInt()),
                        saved_eps(ctx), stream, grad_x, grad_weight);
  return {grad_x, grad_weight};
}

// --- autograd ---

struct NormRope : torch::autograd::Function<NormRope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& weight,
                        const Tensor& cos, const Tensor& sin, RopeLayout layout, double eps) {
    const Tensor scale = weight.value_or(Tensor());
    // Without a norm the gradient does not depend on x.
    save(ctx, {weight ? x : Tensor(), scale, cos, sin}, eps);
    ctx->saved_data["layout"] = static_cast<int64_t>(layout);
    return run_norm_rope(x, scale, cos, sin, layout, eps);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list result(6);
    if (!grads[0].defined()) return result;
    const variable_list saved = ctx->get_saved_variables();
    auto given =
        norm_rope_backward(ctx, grads[0].contiguous(), saved, StreamRows::alone(grads[0].size(0)),
                           saved[1].defined() && ctx->needs_input_grad(1));
    std::move(given.begin(), given.end(), result.begin());
    return result;
  }
};

struct JoinedNormRope : torch::autograd::Function<JoinedNormRope> {
  static Tensor forward(AutogradContext* ctx, const Tensor& a_x, const Tensor& b_x,
                        const std::optional<Tensor>& a_weight,
                        const std::optional<Tensor>& b_weight, const RopeStream& a,
                        const RopeStream& b, RopeLayout layout, double eps) {
    save(ctx,
         {a_weight ? a_x : Tensor(), a_weight.value_or(Tensor()), a.cos, a.sin,
          b_weight ? b_x : Tensor(), b_weight.value_or(Tensor()), b.cos, b.sin},
         eps);
    ctx->saved_data["a"] = a.rows.tensor();
    ctx->saved_data["b"] = b.rows.tensor();
    ctx->saved_data["layout"] = static_cast<int64_t>(layout);
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
      const auto of_stream = at::ArrayRef<Tensor>(saved).slice(4 * i, 4);
      const bool weight_grad = of_stream[1].defined() && ctx->needs_input_grad(edge++);
      if (!ctx->needs_input_grad(i) && !weight_grad) continue;
      auto given =
          norm_rope_backward(ctx, grad, of_stream, {rows[i], rows[1 - i], i == 0}, weight_grad);
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
  if (!norm_rope_kernels.takes(x, x.size(2)))
    return composed_norm_rope(x, weight, cos, sin, layout, eps);
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
  if (!norm_rope_kernels.takes(a.x, a.x.size(2)))
    return composed_joined_norm_rope(a, b, layout, eps);
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
