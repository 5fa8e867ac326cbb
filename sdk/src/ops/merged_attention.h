// Attention to keys that come in several sets, or from several ranks, under one softmax.
#pragma once

#include <span>

#include "atelier/ops/attention.h"

namespace atelier::ops {

// As attention() over sets of keys, for arguments that fit. Keys that are together are attended to
// by themselves, and what they give is weighed by the log-sum-exp of their scores (online softmax;
// Milakov and Gimelshein 2018, Liu et al. 2023) in float32, or in float64 of that, and rounded
// once. In the backward pass the same kernels get the output and the log-sum-exp of all keys.
//
// A set whose rows are shared out is a ring, for any number of ranks and heads: every rank keeps
// its queries, all heads of them, and attends with them to the keys of one rank after the other,
// while the next ones come. In the backward pass keys go around again, and behind them their
// gradients, rounded at every rank, which the last rank sends home. Groups of keys are gathered
// beforehand.
//
// `options`: scale and soft cap. Throws Error{kUnsupported} where a back end is forced whose
// log-sum-exp is not known.
at::Tensor merged_attention(const at::Tensor& q, const Segments& q_rows,
                            std::span<const KeySet> sets, const AttentionOptions& options);

}  // namespace atelier::ops
