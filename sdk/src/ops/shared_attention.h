// Attention among rows that are shared out: every rank attends with some heads of all rows.
#pragma once

#include "atelier/ops/attention.h"

namespace atelier::ops {

// As attention(). What every rank has of its rows, all heads, is exchanged for what it computes
// with, all rows of its heads, and the result is exchanged back. Throws Error{kUnsupported} for
// options that know an order of rows, and where the ranks do not divide the key heads.
at::Tensor shared_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Segments& q_rows, const Segments& k_rows,
                            const AttentionOptions& options);

// The rows of all ranks, sample by sample, of this rank's: [rows.total(), ...] to [N, ...].
at::Tensor gather_rows(const at::Tensor& own, const Segments& rows);

}  // namespace atelier::ops
