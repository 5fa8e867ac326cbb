#include "memory/gradient_probe.h"

#include <ATen/ATen.h>

namespace atelier::memory {

namespace {

using at::Tensor;

constexpr double kTolerance = 2e-2;

bool has_new_nan(const Tensor& probed, const Tensor& given) {
  return (probed.isnan() & given.isnan().logical_not()).any().item<bool>();
}

bool is_far(const Tensor& probed, const Tensor& given) {
  if (given.numel() == 0) return false;
  const Tensor far = (probed - given).abs().max(), most = given.abs().max();
  return !(far <= kTolerance * most).item<bool>();  // NaN is far, too
}

}  // namespace

bool are_touched(const Tensors& probed, const Tensors& given, Probe probe,
                 std::optional<bool> to_the_bit) {
  for (size_t i = 0; i < probed.size(); ++i) {
    if (probed[i].defined() != given[i].defined()) return true;
    if (!probed[i].defined() || at::equal(probed[i], given[i])) continue;
    if (to_the_bit.value_or(probed[i].is_cpu())) return true;
    if (has_new_nan(probed[i], given[i])) return true;
    if (probe == Probe::kLarge && is_far(probed[i], given[i])) return true;
  }
  return false;
}

}  // namespace atelier::memory
