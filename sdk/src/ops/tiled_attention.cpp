// Shape letters: B samples, H heads, K heads of keys, G heads that share one of them, L rows, R
// rows of a tile, S keys that these may see, d head width. Products are batched over B * K, so that
// keys are used as they are.
#include "ops/tiled_attention.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/host/stop.h"

#include "ops/autograd_support.h"

namespace atelier::ops {
namespace {

using at::Tensor;

constexpr int64_t kTileScores = int64_t{16} << 20;
constexpr int64_t kBiasRows = 256;  // in a tile, where there are fewer keys

struct Shape {
  int64_t samples, heads, key_heads, shared, length, keys, width;  // B, H, K, G, L, all S, d
  Shape(const Tensor& q, const Tensor& k)
      : samples(q.size(0)),
        heads(q.size(1)),
        key_heads(k.size(1)),
        shared(q.size(1) / k.size(1)),
        length(q.size(2)),
        keys(k.size(2)),
        width(q.size(3)) {}
  int64_t batch() const { return samples * key_heads; }
  int64_t tile_rows(const AttentionOptions& options) const {
    const int64_t rows = std::clamp<int64_t>(kTileScores / (samples * heads * keys), 1, length);
    if (!options.offset_bias.defined()) return rows;
    // A bias takes R + S for each row beside the S of its scores.
    return std::clamp<int64_t>(rows / 3, 1, std::max(keys, kBiasRows));
  }
};

// Rows [row, row + rows) of the queries, and the keys that some of them see.
struct Tile {
  int64_t row, rows, key, keys;
  Tile(int64_t first, int64_t count, int64_t all_keys, const AttentionOptions& options)
      : row(first),
        rows(count),
        key(options.window > 0 ? std::max<int64_t>(0, first - options.window + 1) : 0),
        keys((options.causal ? first + count : all_keys) - key) {}

  // [B * K, G * R, d] of [B, H, L, d], in the dtype of the scores.
  Tensor queries(const Tensor& t, const Shape& s, at::ScalarType dtype) const {
    return t.narrow(2, row, rows).to(dtype).reshape({s.batch(), s.shared * rows, t.size(3)});
  }
  // [B * K, S, d] of [B * K, L, d].
  Tensor visible(const Tensor& t) const { return t.narrow(1, key, keys); }

  // The offsets of the tile in a bias by offset, [H, R + S - 1], from that of the last row and the
  // first key on.
  Tensor offsets(const Tensor& bias, const Shape& s) const {
    return bias.narrow(1, s.length - row - rows + key, rows + keys - 1);
  }

  // True where positions keep a row from seeing a key: [R, S]; undefined when each sees all.
  Tensor hidden(const AttentionOptions& options, at::Device device) const {
    if (!options.causal) return {};
    const auto at = at::TensorOptions(at::kLong).device(device);
    const Tensor ahead =
        at::arange(key, key + keys, at) - at::arange(row, row + rows, at).unsqueeze(1);
    return options.window > 0 ? at::bitwise_or(ahead > 0, ahead <= -options.window) : ahead > 0;
  }

  // True where a row and a key share no group: [B, 1, R, S].
  Tensor apart(const AttentionOptions& options) const {
    const Tensor sees = options.query_sees.narrow(1, row, rows).unsqueeze(2);
    const Tensor groups = options.key_groups.narrow(1, key, keys).unsqueeze(1);
    return (at::bitwise_and(sees, groups) == 0).unsqueeze(1);
  }
};

Tensor keys_of(const Tensor& t, const Shape& s) {
  return t.to(wide(t)).reshape({s.batch(), s.keys, s.width});
}

double scale_of(const AttentionOptions& options, const Shape& s) {
  return options.scale == 0 ? 1.0 / std::sqrt(static_cast<double>(s.width)) : options.scale;
}

// [H, R, S] of [H, R, R + S - 1], all offsets for each row, dense: a view of those that the row
// meets, which begin one earlier than in the row before.
Tensor met_offsets(const Tensor& offsets) {
  const int64_t rows = offsets.size(1), count = offsets.size(2);
  return offsets.as_strided({offsets.size(0), rows, count - rows + 1}, {rows * count, count - 1, 1},
                            rows - 1);
}

// [H, R, S] of [H, R + S - 1].
Tensor by_position(const Tensor& offsets, int64_t rows) {
  const Tensor for_each_row = offsets.unsqueeze(1).expand({-1, rows, -1});
  return met_offsets(for_each_row.clone(at::MemoryFormat::Contiguous));
}

// The inverse: sums over the rows and keys of one offset, [H, R + S - 1].
Tensor sums_by_offset(const Tensor& by_position) {
  const int64_t rows = by_position.size(1), count = rows + by_position.size(2) - 1;
  const Tensor for_each_row = at::zeros({by_position.size(0), rows, count}, by_position.options());
  met_offsets(for_each_row).copy_(by_position);
  return for_each_row.sum(1);
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
  const Tensor by_head = x.view({s.samples, s.heads, tile.rows, tile.keys});
  if (options.offset_bias.defined())
    by_head.add_(by_position(tile.offsets(options.offset_bias, s).to(x.scalar_type()), tile.rows));
  if (options.query_sees.defined()) by_head.masked_fill_(tile.apart(options), -INFINITY);
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
  const int64_t step = s.tile_rows(options);
  for (int64_t row = 0; row < s.length; row += step) {
    check_stop();
    const Tile tile(row, std::min(step, s.length - row), s.keys, options);
    Tensor x = scores(tile, tile.queries(q, s, wide(q)), tile.visible(keys), s, options, nullptr);
    Tensor most = x.amax(-1, /*keepdim=*/true);
    // A row that sees no key: its weights are 0, and with an infinite sum in the backward pass too.
    if (options.query_sees.defined()) most.masked_fill_(most == -INFINITY, INFINITY);
    const Tensor sums = x.sub_(most).exp_().sum(-1, /*keepdim=*/true);
    if (options.query_sees.defined()) sums.masked_fill_(sums == 0, 1);
    x.div_(sums);
    out.narrow(2, row, tile.rows)
        .copy_(at::bmm(x, tile.visible(values)).view({s.samples, s.heads, tile.rows, s.width}));
    log_sum_exp.narrow(2, row, tile.rows)
        .copy_((most + sums.log()).view({s.samples, s.heads, tile.rows}));
  }
  return {out, log_sum_exp};
}

std::tuple<Tensor, Tensor, Tensor> tiled_attention_backward(
    const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
    const Tensor& log_sum_exp, const AttentionOptions& options, Tensor* grad_bias) {
  const Shape s(q, k);
  const Tensor keys = keys_of(k, s), values = keys_of(v, s);
  Tensor grad_q = at::empty_like(q), grad_k = at::zeros_like(keys), grad_v = at::zeros_like(values);
  const int64_t step = s.tile_rows(options);
  for (int64_t row = 0; row < s.length; row += step) {
    check_stop();
    const Tile tile(row, std::min(step, s.length - row), s.keys, options);
    const Tensor queries = tile.queries(q, s, wide(q)), g = tile.queries(grad, s, wide(q));
    Tensor bent;
    Tensor x = scores(tile, queries, tile.visible(keys), s, options, &bent);
    const Tensor sums =
        log_sum_exp.narrow(2, row, tile.rows).reshape({s.batch(), s.shared * tile.rows, 1});
    const Tensor weights = x.sub_(sums).exp_();
    tile.visible(grad_v).add_(at::bmm(weights.transpose(1, 2), g));

    const Tensor mean = (g * tile.queries(out, s, wide(q))).sum(-1, /*keepdim=*/true);
    Tensor grad_x = at::bmm(g, tile.visible(values).transpose(1, 2)).sub_(mean).mul_(weights);
    if (grad_bias->defined()) {
      const Tensor by_head = grad_x.view({s.samples, s.heads, tile.rows, tile.keys});
      tile.offsets(*grad_bias, s).add_(sums_by_offset(by_head.sum(0)));
    }
    if (bent.defined()) grad_x.mul_(bent.square_().neg_().add_(1));
    grad_x.mul_(scale_of(options, s));
    grad_q.narrow(2, row, tile.rows)
        .copy_(at::bmm(grad_x, tile.visible(keys)).view({s.samples, s.heads, tile.rows, s.width}));
    tile.visible(grad_k).add_(at::bmm(grad_x.transpose(1, 2), queries));
  }
  const auto shaped = [&](const Tensor& t) {
    return t.view({s.samples, s.key_heads, s.keys, s.width}).to(q.scalar_type());
  };
  return {grad_q, shaped(grad_k), shaped(grad_v)};
}

}  // namespace atelier::ops
