#include "host/lora/low_rank.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "host/random/noise.h"

namespace atelier::lora {

namespace {

constexpr int64_t kWholeSide = 256;      // matrices with a side up to this are decomposed whole
constexpr int64_t kMoreDirections = 16;  // beside `rank`, of the subspace
constexpr int kIterations = 4;

at::Tensor orthonormal(const at::Tensor& matrix) {
  return std::get<0>(at::linalg_qr(matrix, "reduced"));
}

// left * (u * s * v) * right with the first `rank` values, half of each in either factor.
LowRank factors(const at::Tensor& left, const at::Tensor& matrix, const at::Tensor& right,
                int64_t rank) {
  const auto [u, s, v] = at::linalg_svd(matrix, /*full_matrices=*/false);
  const int64_t kept = std::min(rank, s.size(0));
  const at::Tensor root = s.narrow(0, 0, kept).sqrt();
  at::Tensor up = u.narrow(1, 0, kept) * root;
  at::Tensor down = root.unsqueeze(1) * v.narrow(0, 0, kept);
  if (left.defined()) up = at::mm(left, up);
  if (right.defined()) down = at::mm(down, right);
  return {up.to(at::kFloat).contiguous(), down.to(at::kFloat).contiguous()};
}

}  // namespace

LowRank truncate(const at::Tensor& up, const at::Tensor& down, int64_t rank) {
  const auto [left, r_up] = at::linalg_qr(up.to(at::kDouble), "reduced");
  const auto [right, r_down] = at::linalg_qr(down.to(at::kDouble).t(), "reduced");
  return factors(left, at::mm(r_up, r_down.t()), right.t(), rank);
}

LowRank approximate(const at::Tensor& matrix, int64_t rank) {
  const int64_t directions = rank + kMoreDirections;
  const int64_t side = std::min(matrix.size(0), matrix.size(1));
  if (side <= std::max(kWholeSide, directions))
    return factors({}, matrix.to(at::kDouble), {}, rank);
  at::Tensor range = orthonormal(
      at::mm(matrix, random::normal_noise({}, {matrix.size(1), directions}).to(matrix.device())));
  for (int i = 0; i < kIterations; ++i)
    range = orthonormal(at::mm(matrix, orthonormal(at::mm(matrix.t(), range))));
  return factors(range.to(at::kDouble), at::mm(range.t(), matrix).to(at::kDouble), {}, rank);
}

}  // namespace atelier::lora
