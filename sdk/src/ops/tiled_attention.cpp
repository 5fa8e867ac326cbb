// Shape letters: B samples, H heads, K heads of keys, G heads that share one of them, L rows, R
// rows of a tile, S keys that these see, d head width. Products are batched over B * K, so that
// keys are used as they are.
#include "ops/tiled_attention.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/ops/stop.h"

namespace atelier::ops {
namespace {

using at::Tensor;

constexpr int64_t kTileScores = int64_t{16} << 20;

struct Shape {
  int64_t samples, heads, key_heads, shared, length, width;  // B, H, K, G, L, d
  Shape(const Tensor& q, const Tensor& k)
      : samples(q.size(0)),
        heads(q.size(1)),
        key_heads(k.size(1)),
        shared(q.size(1) / k.size(1)),
        length(q.size(2)),
        width(q.size(3)) {}
  int64_t batch() const { return samples * key_heads; }
  int64_t tile_rows() const {
    return std::clamp<int64_t>(kTileScores / (samples * heads * length), 1, length);
  }
};

// Rows [row, row + rows) of the queries, and the keys that some of them see.
struct Tile {
  int64_t row, rows, key, keys;
  Tile(int64_t first, int64_t count, int64_t length, const AttentionOptions& options)
      : row(first),
        rows(count),
        key(options.window > 0 ? std::max<int64_t>(0, first - options.window + 1) : 0),
        keys((options.causal ? first + count : length) - key) {}

  // [B * K, G * R, d] of [B, H, L, d], in the dtype of the scores.
  Tensor queries(const Tensor& t, const Shape& s, at::ScalarType dtype) const {
    return t.narrow(2, row, rows).to(dtype).reshape({s.batch(), s.shared * rows, t.size(3)});
  }
  // [B * K, S, d] of [B * K, L, d].
  Tensor visible(const Tensor& t) const { return t.narrow(1, key, keys); }

  // True where a row does not see a key: [R, S]; undefined when each sees all.
  Tensor hidden(const AttentionOptions& options, at::Device device) const {
    if (!options.causal) return {};
    const auto at = at::TensorOptions(at::kLong).device(device);
    const Tensor ahead =
        at::arange(key, key + keys, at) - at::arange(row, row + rows, at).unsqueeze(1);
    return options.window > 0 ? at::bitwise_or(ahead > 0, ahead <= -options.window) : ahead > 0;
  }
};

at::ScalarType wide(const Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor keys_of(const Tensor& t, const Shape& s) {
  return t.to(wide(t)).reshape({s.batch(), s.length, s.width});
}

double scale_of(const AttentionOptions& options, const Shape& s) {
  return options.scale == 0 ? 1.0 / std::sqrt(static_cast<double>(s.width)) : options.scale;
}

// Scores of a tile, [B * K, G * R, S]. Where there is a cap, `*bent` becomes what tanh gave, unless
// it is null.
Tensor scores(const Tile& tile, const Tensor& queries, const Tensor& keys, const Shape& s,
              const AttentionOptions& options, Tensor* bent) {
  Tensor x = at::bmm(queries, keys.transpose(1, 2)).mul_(scale_of(options, s));
  if (options.softcap > 0) {
    x.div_(options.softcap).tanh_();
    if (bent != nullptr) *bent = x.clone();
    x.mul_(options.softcap);
  }
  if (const Tensor hidden = tile.hidden(options, x.device()); hidden.defined()) {
    x.view({s.batch(), s.shared, tile.rows, tile.keys}).masked_fill_(hidden, -INFINITY);
  }
  return x;
}

}  // namespace

std::tuple<Tensor, Tensor> tiled_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                           const AttentionOptions& options) {
  const Shape s(q, k);
  const Tensor keys = keys_of(k, s), values = keys_of(v, s);
  Tensor out = at::empty_like(q);
  Tensor log_sum_exp = at::empty({s.samples, s.heads, s.length}, q.options().dtype(wide(q)));
  const int64_t step = s.tile_rows();
  for (int64_t row = 0; row < s.length; row += step) {
    check_stop();
    const Tile tile(row, std::min(step, s.length - row), s.length, options);
    Tensor x = scores(tile, tile.queries(q, s, wide(q)), tile.visible(keys), s, options, nullptr);
    const Tensor most = x.amax(-1, /*keepdim=*/true);
    const Tensor sums = x.sub_(most).exp_().sum(-1, /*keepdim=*/true);
    x.div_(sums);
    out.narrow(2, row, tile.rows)
        .copy_(at::bmm(x, tile.visible(values)).view({s.samples, s.heads, tile.rows, s.width}));
    log_sum_exp.narrow(2, row, tile.rows)
        .copy_((most + sums.log()).view({s.samples, s.heads, tile.rows}));
  }
  return {out, log_sum_exp};
}

std::tuple<Tensor, Tensor, Tensor> tiled_attention_backward(const Tensor& grad, const Tensor& q,
                                                            const Tensor& k, const Tensor& v,
                                                            const Tensor& out,
                                                            const Tensor& log_sum_exp,
                                                            const AttentionOptions& options) {
  const Shape s(q, k);
  const Tensor keys = keys_of(k, s), values = keys_of(v, s);
  Tensor grad_q = at::empty_like(q), grad_k = at::zeros_like(keys), grad_v = at::zeros_like(values);
  const int64_t step = s.tile_rows();
  for (int64_t row = 0; row < s.length; row += step) {
    check_stop();
    const Tile tile(row, std::min(step, s.length - row), s.length, options);
    const Tensor queries = tile.queries(q, s, wide(q)), g = tile.queries(grad, s, wide(q));
    Tensor bent;
    Tensor x = scores(tile, queries, tile.visible(keys), s, options, &bent);
    const Tensor sums =
        log_sum_exp.narrow(2, row, tile.rows).reshape({s.batch(), s.shared * tile.rows, 1});
    const Tensor weights = x.sub_(sums).exp_();
    tile.visible(grad_v).add_(at::bmm(weights.transpose(1, 2), g));

    const Tensor mean = (g * tile.queries(out, s, wide(q))).sum(-1, /*keepdim=*/true);
    Tensor grad_x = at::bmm(g, tile.visible(values).transpose(1, 2)).sub_(mean).mul_(weights);
    if (bent.defined()) grad_x.mul_(bent.square_().neg_().add_(1));
    grad_x.mul_(scale_of(options, s));
    grad_q.narrow(2, row, tile.rows)
        .copy_(at::bmm(grad_x, tile.visible(keys)).view({s.samples, s.heads, tile.rows, s.width}));
    tile.visible(grad_k).add_(at::bmm(grad_x.transpose(1, 2), queries));
  }
  const auto shaped = [&](const Tensor& t) {
    return t.view({s.samples, s.key_heads, s.length, s.width}).to(q.scalar_type());
  };
  return {grad_q, shaped(grad_k), shaped(grad_v)};
}

}  // namespace atelier::ops
