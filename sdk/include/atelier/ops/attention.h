// Scaled dot-product attention over packed samples; attention weights and masks are never
// materialised.
#pragma once

#include <optional>
#include <span>

#include "atelier/segments.h"

namespace atelier::ops {

// Which implementation runs. kAuto takes the fastest that device, dtype and shapes allow.
enum class AttentionBackend { kAuto, kFlash, kEfficient, kCudnn, kMath };

// Forces one back end for the process. Throws Error{kUnsupported} from attention() where it cannot
// run.
ATELIER_API void set_attention_backend(AttentionBackend backend);

struct AttentionOptions {
  bool causal = false;
  double scale = 0.0;  // of q kᵀ; 0 means 1 / sqrt(d)
  // Scores s become softcap * tanh(s / softcap); 0 leaves them as they are.
  double softcap = 0.0;
  // Each row sees itself and the window - 1 rows before it, so it needs `causal`; 0: all of them.
  int64_t window = 0;
  // Added to the scores by key position minus query position: [H, Lq + Lk - 1], Lq and Lk the
  // longest samples. Column c belongs to the difference c - (Lq - 1), so column Lq - 1 to a row and
  // the key of its own position. Any floating dtype, on q's device; differentiable. Undefined:
  // none.
  at::Tensor offset_bias = {};
  // Regions: a query row sees the keys that share a group with it. Sets of up to 63 groups as bits,
  // int64 on q's device: query_sees [Nq] and key_groups [Nk], both or neither. A row that sees no
  // key gives zeros.
  at::Tensor query_sees = {}, key_groups = {};
};

// softmax(scale * q kᵀ) v between the queries and the keys of each sample.
//
// q: [Nq, H, d], packed by `q_rows`; k, v: [Nk, K, d], packed by `k_rows`, K divides H (grouped
// keys, used as they are). Both have as many samples; one without keys gives zeros. Under a
// recompute scope the output and its log-sum-exp are one item.
//
// No back end has a soft cap, a window, a bias or groups on every device, so with any of them the
// scores are made tile by tile in float32, of at most 64 MiB, whatever back end is forced.
//
// Where the keys' rows are shared out among ranks, so are the queries', and each sees the keys of
// all ranks; queries that are shared out see whole keys as they are. Shared keys have none of
// causal, window and bias.
//
// Returns [Nq, H * d], contiguous, in q's dtype.
// Throws Error{kInvalidArgument} when shapes do not fit, and for `causal` where a sample has not as
// many keys as queries; Error{kUnsupported} when the forced back end cannot run, for what shared
// keys have not, and for shared keys of queries that are not shared out.
ATELIER_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const Segments& q_rows, const Segments& k_rows,
                                 AttentionOptions options);

// Attention among the rows of each sample: q, k and v are packed alike.
ATELIER_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const Segments& rows, AttentionOptions options = {});

// Keys that queries see beside others: one of several sets under one softmax.
struct KeySet {
  at::Tensor k, v;  // [Nk, K, d], packed by `rows`
  Segments rows;    // as many samples as the queries have; a sample may have no keys in a set
  // Which of them each query sees, as AttentionOptions has it: both or neither.
  at::Tensor query_sees = {}, key_groups = {};
  // Added to every scaled score of this set, from -1e6 to 1e6. Sums of exponentials are float32
  // logarithms, so a bias of thousands costs digits; groups are for keys that are not seen.
  double score_bias = 0.0;
};

// Attention to the keys of all sets together, as if their rows were joined sample by sample.
//
// q: [Nq, H, d], packed by `q_rows`. K divides H, and may differ from set to set. A set without
// groups runs on the kernels that attention() chooses, one with groups tile by tile; what the sets
// give is weighed by the log-sum-exp of their scores in float32, or in float64 of that, and
// rounded once. One set gives what attention() gives, to the bit. A query that sees no key of any
// set gives zeros. Under a recompute scope the output and its log-sum-exp are one item.
//
// Rows that are shared out among ranks are as in attention(), set by set: the keys of a shared set
// go around all ranks, whole sets are seen by each rank as they are.
//
// scale: of q kᵀ; 0 means 1 / sqrt(d). Returns [Nq, H * d], contiguous, in q's dtype.
// Throws Error{kInvalidArgument} when shapes do not fit, there is no set, or a bias is out of
// range; Error{kUnsupported} as attention() does, and for several sets where cuDNN is forced.
ATELIER_API at::Tensor attention(const at::Tensor& q, const Segments& q_rows,
                                 std::span<const KeySet> sets, double scale = 0.0);

}  // namespace atelier::ops
