#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "host/optim/optimizer.h"

namespace atelier::optim {
namespace {

// L2 over all gradients, accumulated in float32 on the device of the first one; undefined when
// there is none.
at::Tensor total_norm(const std::vector<Group>& groups) {
  using Kind = std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>;
  std::map<Kind, std::vector<at::Tensor>> gradients;
  std::optional<c10::Device> first;
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters) {
      const at::Tensor& grad = parameter.leaf.grad();
      if (!grad.defined()) continue;
      if (!first) first = grad.device();
      gradients[{grad.device().type(), grad.device().index(), grad.scalar_type()}].push_back(grad);
    }
  }
  if (!first) return {};
  std::vector<at::Tensor> norms;
  for (const auto& [kind, tensors] : gradients) {
    const auto each = at::_foreach_norm(tensors, /*ord=*/2, at::kFloat);
    norms.push_back(at::linalg_vector_norm(at::stack(each)).to(*first));
  }
  return norms.size() == 1 ? norms[0] : at::linalg_vector_norm(at::stack(norms));
}

}  // namespace

GradientNorm measure_gradients(const std::vector<Group>& groups, const at::Tensor& loss,
                               double max_norm) {
  const at::NoGradGuard no_grad;
  GradientNorm result;
  result.norm = total_norm(groups);
  if (!result.norm.defined()) {
    result.norm = at::zeros(
        {}, at::TensorOptions(loss.defined() ? loss.device() : at::kCPU).dtype(at::kFloat));
  }
  result.grad_scale =
      max_norm > 0 ? result.norm.div(max_norm).clamp_min_(1.0) : at::ones_like(result.norm);
  at::Tensor is_finite = at::isfinite(result.norm);
  if (loss.defined()) {
    is_finite = is_finite.logical_and_(at::isfinite(loss.detach()).to(is_finite.device()));
  }
  result.is_skipped = is_finite.logical_not_().to(at::kFloat);
  return result;
}

}  // namespace atelier::optim
