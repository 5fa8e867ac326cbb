// Attention among rows that are shared out: every rank's keys go around all ranks.
#pragma once

#include "atelier/ops/attention.h"

namespace atelier::ops {

// As attention(), for any number of ranks and heads. Every rank keeps its queries, all heads of
// them, and attends with them to the keys of one rank after the other, while the next ones come.
// What it makes of each is weighed by the log-sum-exp of the scores (online softmax; Milakov and
// Gimelshein 2018, Liu et al. 2023) in float32, or in float64 of that, and rounded once. In the
// backward pass keys go around again, and behind them their gradients, rounded at every rank, which
// the last rank sends home.
//
// q: this rank's [rows.total(), H, d], k, v: [rows.total(), K, d]. `rows` are shared out, and
// `options` know no order of rows. Throws Error{kUnsupported} where a back end is forced whose
// log-sum-exp is not known.
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const Segments& rows, const AttentionOptions& options);

}  // namespace atelier::ops
