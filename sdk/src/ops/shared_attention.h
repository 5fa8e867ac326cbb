// Attention among rows that are shared out among ranks.
#pragma once

#include "atelier/host/sequence_scope.h"
#include "atelier/ops/attention.h"

namespace atelier::ops {

// As attention(), for arguments that fit. Where the ranks divide the key heads and queries and keys
// are the same rows, without groups, what every rank has of its rows, all heads, is exchanged for
// what it computes with, all rows of its heads, and the result is exchanged back; otherwise it is
// merged_attention(). Throws Error{kUnsupported} for options that know an order of rows.
at::Tensor shared_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const Segments& q_rows, const Segments& k_rows,
                            const AttentionOptions& options);

// The rows of all ranks, sample by sample, of this rank's: [rows.total(), ...] to [N, ...].
at::Tensor gather_rows(const at::Tensor& own, const Segments& rows);
// All ranks' rows as each of them has its own: [P, n, ...], n the most rows of a rank. What is
// behind the last row of a rank has no meaning.
at::Tensor gather_ranks(const at::Tensor& own, const Segments& rows);

// The ranks of now, among which `rows` are shared out, and the most rows that one of them has.
SequenceGroup& group_of(const Segments& rows);
int64_t most_rows(const Segments& rows);

}  // namespace atelier::ops
