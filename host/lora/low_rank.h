// Matrices as products of two factors of few ranks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace atelier::lora {

// up * down: [out, rank] and [rank, in], float32.
struct LowRank {
  at::Tensor up, down;
};

// The best product of `rank` for up * down, which are [out, r] and [r, in] of any floating dtype:
// their singular values, cut off. In float64, and in time that grows with r and not with out * in.
LowRank truncate(const at::Tensor& up, const at::Tensor& down, int64_t rank);

// A product of `rank` for a float32 matrix. Small matrices are decomposed whole; of others the
// leading singular vectors are found by subspace iteration from fixed random numbers: exact for
// matrices of this rank, otherwise within a few thousandths of the least error that there is.
LowRank approximate(const at::Tensor& matrix, int64_t rank);

}  // namespace atelier::lora
