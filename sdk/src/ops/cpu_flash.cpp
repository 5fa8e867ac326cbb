// Shape letters: B samples, H heads, K heads of keys, L rows, S keys, d head width.
#include "ops/cpu_flash.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "atelier/host/stop.h"

namespace atelier::ops {
namespace {

using at::Tensor;

constexpr double kTileFlops = 1e10;  // a fraction of a second
// Rows that the kernel computes together in samples of at least so many: tiles of these give the
// bits of one call. Shorter ones are made where those would take too long.
constexpr int64_t kRowStep = 256, kLongSample = 768;
constexpr double kMostFlops = 1e11;  // of a long one

// Tiles of rows, or of heads with their keys.
struct Tiles {
  bool of_heads;
  int64_t total, step;  // rows, or heads of keys
  int64_t shared;       // heads that share one of keys

  // Without a mask each row is computed alone, so that tiles are rows.
  static Tiles of_rows(const Tensor& q, const Tensor& k) {
    const int64_t length = q.size(2);
    const double flops = 4.0 * static_cast<double>(q.size(0) * q.size(1) * q.size(3)) *
                         static_cast<double>(k.size(2));
    const int64_t least =
        flops * static_cast<double>(kLongSample) <= kMostFlops ? kLongSample : kRowStep;
    const auto rows = static_cast<int64_t>(kTileFlops / std::max(flops, 1.0)) / kRowStep * kRowStep;
    return {false, length, std::clamp(rows, least, std::max(least, length)), 1};
  }
  // At least one head for each thread.
  static Tiles of_key_heads(const Tensor& q, const Tensor& k, double passes) {
    const int64_t heads = k.size(1), shared = q.size(1) / heads;
    const double flops = passes * 4.0 * static_cast<double>(q.size(0) * shared * q.size(3)) *
                         static_cast<double>(q.size(2)) * static_cast<double>(k.size(2));
    const auto least = std::max<int64_t>(1, at::get_num_threads() / shared);
    return {true, heads, std::max(least, static_cast<int64_t>(kTileFlops / std::max(flops, 1.0))),
            shared};
  }

  bool is_one() const { return step >= total; }

  // Calls `tile` with the first row or head and their number.
  template <typename F>
  void for_each(const F& tile) const {
    const int64_t least = of_heads ? 1 : kLongSample;  // of the last tile
    for (int64_t first = 0, count = 0; first < total; first += count) {
      check_stop();
      count = total - first < step + least ? total - first : step;
      tile(first, count);
    }
  }

  // The part of q, or of anything that has its heads and rows.
  Tensor queries(const Tensor& t, int64_t first, int64_t count) const {
    return of_heads ? t.narrow(1, first * shared, count * shared) : t.narrow(2, first, count);
  }
  // Rows `first` to `first + count` of k or v.
  Tensor keys(const Tensor& t, int64_t first, int64_t count) const {
    return of_heads ? t.narrow(1, first, count) : t;
  }
};

}  // namespace

Tensor empty_heads(const Tensor& like) {
  return at::empty({like.size(0), like.size(2), like.size(1), like.size(3)}, like.options())
      .transpose(1, 2);
}

std::tuple<Tensor, Tensor> cpu_flash(const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                                     std::optional<double> scale) {
  const Tiles tiles = causal ? Tiles::of_key_heads(q, k, 1.0) : Tiles::of_rows(q, k);
  const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v) {
    return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, scale);
  };
  if (tiles.is_one()) return attend(q, k, v);
  Tensor out = empty_heads(q), sums;
  tiles.for_each([&](int64_t first, int64_t count) {
    const auto [part, part_sums] = attend(tiles.queries(q, first, count),
                                          tiles.keys(k, first, count), tiles.keys(v, first, count));
    if (!sums.defined())
      sums = at::empty({q.size(0), q.size(2), q.size(1)}, part_sums.options()).transpose(1, 2);
    tiles.queries(out, first, count).copy_(part);
    tiles.queries(sums, first, count).copy_(part_sums);
  });
  return {out, sums};
}

std::tuple<Tensor, Tensor, Tensor> cpu_flash_backward(const Tensor& grad, const Tensor& q,
                                                      const Tensor& k, const Tensor& v,
                                                      const Tensor& out, const Tensor& log_sum_exp,
                                                      bool causal, std::optional<double> scale) {
  const Tiles tiles = Tiles::of_key_heads(q, k, 2.5);
  if (tiles.is_one())
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, log_sum_exp,
                                                                    0.0, causal, {}, scale);
  Tensor grad_q = empty_heads(q), grad_k = empty_heads(k), grad_v = empty_heads(v);
  tiles.for_each([&](int64_t first, int64_t count) {
    const auto queries = [&](const Tensor& t) { return tiles.queries(t, first, count); };
    const auto keys = [&](const Tensor& t) { return tiles.keys(t, first, count); };
    const auto [part_q, part_k, part_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        queries(grad), queries(q), keys(k), keys(v), queries(out), queries(log_sum_exp), 0.0,
        causal, {}, scale);
    queries(grad_q).copy_(part_q);
    keys(grad_k).copy_(part_k);
    keys(grad_v).copy_(part_v);
  });
  return {grad_q, grad_k, grad_v};
}

}  // namespace atelier::ops
