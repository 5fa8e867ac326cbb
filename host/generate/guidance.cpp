#include "host/generate/guidance.h"

#include <ATen/ATen.h>

namespace atelier::generate {
namespace {

constexpr double kLeastLength = 1e-15;  // what has none stays as it is

at::Tensor length(const at::Tensor& v, at::IntArrayRef axes) {
  return at::sqrt(at::sum(v.square(), axes, /*keepdim=*/true));
}

}  // namespace

bool is_guided_at(double sigma, double cfg_trunc) {
  return 1.0 - sigma < cfg_trunc;
}

at::Tensor renormed(const at::Tensor& guided_BCTHW, const at::Tensor& with_BCTHW, CfgRenorm renorm,
                    double ratio) {
  if (renorm == CfgRenorm::kNone) return guided_BCTHW;
  const bool is_row = renorm == CfgRenorm::kRow;
  const std::vector<int64_t> axes =
      is_row ? std::vector<int64_t>{-1} : std::vector<int64_t>{1, 2, 3, 4};
  at::Tensor factor =
      length(with_BCTHW, axes).div_(length(guided_BCTHW, axes).clamp_min_(kLeastLength));
  if (!is_row) factor.mul_(ratio).clamp_max_(1.0);
  return guided_BCTHW * factor;
}

}  // namespace atelier::generate
