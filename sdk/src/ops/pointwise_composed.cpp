#include "ops/pointwise_composed.h"

#include <cmath>

#include <ATen/ATen.h>

#include "atelier/host/upload.h"

#include "ops/autograd_support.h"
#include "ops/pointwise_kernels.h"

namespace atelier::ops::composed {
namespace {

using at::Tensor;

// f(x, rows of each of `ts`), where ts are [S, D] and every row of x meets the row of its sample.
template <typename F, typename... Ts>
Tensor per_sample(const Segments& rows, F f, const Tensor& x, const Ts&... ts) {
  if (rows.count() == 1) return f(x, ts...);
  if (rows.is_uniform() && rows.count() > 0) {
    const Tensor samples = x.view({rows.count(), rows.length(0), x.size(1)});
    return f(samples, ts.unsqueeze(1)...).view(x.sizes());
  }
  // LibTorch repeats no meta tensors.
  if (x.is_meta()) return f(x, ts.narrow(0, 0, 1).expand({rows.total(), ts.size(1)}).clone()...);
  const Tensor lengths = offsets_on(rows, x.device()).diff();
  return f(x, at::repeat_interleave(ts, lengths, 0, rows.total())...);
}

// The layer norm over the last axis.
Tensor normalised(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  // LibTorch has none of meta tensors: this allocates as much.
  return x.is_meta() ? x * 1 : at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
}

}  // namespace

Tensor norm_modulate(const Tensor& x, const Tensor& shift, const Tensor& scale,
                     const Segments& rows, double eps) {
  const Tensor normal = normalised(x.to(scale.scalar_type()), {}, {}, eps);
  const Tensor modulated = per_sample(
      rows, [](const Tensor& n, const Tensor& a, const Tensor& b) { return n * (1 + b) + a; },
      normal, shift, scale);
  return modulated.to(x.scalar_type());
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  const auto type = wide(x);
  return normalised(x.to(type), weight.to(type), bias.to(type), eps).to(x.scalar_type());
}

Tensor gate_residual(const Tensor& x, const Tensor& y, const Tensor& gate, const Segments& rows) {
  const Tensor gated = per_sample(
      rows, [](const Tensor& v, const Tensor& g) { return v * g; }, y.contiguous(), gate);
  return (x + gated).to(x.scalar_type());
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Tensor v = x.to(wide(x));
  const Tensor normal = v * at::rsqrt(v.square().mean(-1, true) + eps);
  return normal.to(x.scalar_type()) * weight.to(x.scalar_type());
}

Tensor rms_norm_modulate(const Tensor& x, const Tensor& weight, const Tensor& scale,
                         const Segments& rows, double eps) {
  const Tensor normal = rms_norm(x, weight, eps);
  if (!scale.defined()) return normal;
  const Tensor scaled = per_sample(
      rows, [](const Tensor& n, const Tensor& s) { return n * (1 + s); }, normal, scale);
  return scaled.to(x.scalar_type());
}

Tensor rms_gate_residual(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& gate,
                         const Segments& rows, double eps) {
  const Tensor normal = rms_norm(y, weight, eps);
  return gate.defined() ? gate_residual(x, normal, at::tanh(gate), rows) : x + normal;
}

namespace {

// Before it is rounded to the dtype of x.
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

}  // namespace

Tensor norm_rope(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin,
                 RopeLayout layout, double eps) {
  return wide_norm_rope(x, weight, cos, sin, layout, eps).to(x.scalar_type());
}

Tensor joined_norm_rope(const RopeStream& a, const RopeStream& b, RopeLayout layout, double eps) {
  if (needs_graph({a.x, a.weight, b.x, b.weight})) {
    return join_rows(composed::norm_rope(a.x, a.weight, a.cos, a.sin, layout, eps), a.rows,
                     composed::norm_rope(b.x, b.weight, b.cos, b.sin, layout, eps), b.rows);
  }
  auto sizes = a.x.sizes().vec();
  sizes[0] += b.x.size(0);
  Tensor joined = at::empty(sizes, a.x.options());
  put_rows(wide_norm_rope(a.x, a.weight, a.cos, a.sin, layout, eps), {a.rows, b.rows, true},
           joined);
  put_rows(wide_norm_rope(b.x, b.weight, b.cos, b.sin, layout, eps), {b.rows, a.rows, false},
           joined);
  return joined;
}

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  return at::silu(gate) * up;
}

Tensor gelu_tanh(const Tensor& x) {
  return at::gelu(x, "tanh");
}

Tensor channel_norm(const Tensor& x, const Tensor& gamma, bool silu) {
  const Tensor v = x.to(wide(x));
  const Tensor length = at::linalg_vector_norm(v, 2, at::IntArrayRef{1}, true).clamp_min(1e-12);
  Tensor y = v / length * std::sqrt(static_cast<double>(x.size(1))) *
             gamma.to(v.scalar_type()).view({1, -1, 1, 1});
  if (silu) y = at::silu(y);
  return y.to(x.scalar_type());
}

}  // namespace atelier::ops::composed
