// Scaled dot-product attention over packed samples; attention weights and masks are never
// materialised.
#pragma once

#include <optional>

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
// causal, window, bias and groups.
//
// Returns [Nq, H * d], contiguous, in q's dtype.
// Throws Error{kInvalidArgument} when shapes do not fit, and for `causal` where a sample has not as
// many keys as queries; Error{kUnsupported} when the forced back end cannot run.
ATELIER_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const Segments& q_rows, const Segments& k_rows,
                                 AttentionOptions options);

// Attention among the rows of each sample: q, k and v are packed alike.
ATELIER_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const Segments& rows, AttentionOptions options = {});

}  // namespace atelier::ops
