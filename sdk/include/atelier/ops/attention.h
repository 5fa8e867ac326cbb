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
ATELIER_API AttentionBackend attention_backend();

struct AttentionOptions {
  bool causal = false;
  double scale = 0.0;  // of q kᵀ; 0 means 1 / sqrt(d)
  // Scores s become softcap * tanh(s / softcap); 0 leaves them as they are.
  double softcap = 0.0;
  // Each row sees itself and the window - 1 rows before it, so it needs `causal`; 0: all of them.
  int64_t window = 0;
};

// softmax(scale * q kᵀ) v within each sample.
//
// q: [N, H, d]; k, v: [N, K, d], K divides H (grouped keys, used as they are). Rows are packed by
// `rows`. Under a recompute scope the output and its log-sum-exp are one item.
//
// No back end has a soft cap or a window on every device, so with either of them the scores are
// made tile by tile in float32, of at most 64 MiB, whatever back end is forced.
//
// Returns [N, H * d], contiguous, in q's dtype.
ATELIER_API at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const Segments& rows, AttentionOptions options = {});

}  // namespace atelier::ops
