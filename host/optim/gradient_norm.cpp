#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "host/optim/optimizer.h"

namespace atelier::optim {
namespace {

// Gradients of one device and dtype, in the order of the parameters.
struct Alike {
  std::vector<at::Tensor> norms;      // undefined where the gradient is still to be measured
  std::vector<at::Tensor> gradients;  // of those
};

at::Tensor total(Alike alike) {
  const std::vector<at::Tensor> measured = gradient_norms(alike.gradients);
  size_t next = 0;
  for (at::Tensor& norm : alike.norms) {
    if (!norm.defined()) norm = measured[next++];
  }
  return at::linalg_vector_norm(at::stack(alike.norms));
}

// L2 over all gradients, accumulated in float32 on the device of the first one; undefined when
// there is none.
at::Tensor total_norm(const std::vector<Group>& groups, const NamedTensors& measured) {
  using Kind = std::tuple<c10::DeviceType, c10::DeviceIndex, at::ScalarType>;
  std::map<Kind, Alike> kinds;
  std::optional<c10::Device> first;
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters) {
      const at::Tensor& grad = parameter.leaf.grad();
      const auto known = measured.find(parameter.name);
      if (!grad.defined() && known == measured.end()) continue;
      const at::Tensor& like = grad.defined() ? grad : parameter.leaf;
      const at::Device device = like.device();
      if (!first) first = device;
      if (grad.defined() && grad.numel() == 0) continue;  // a shard, of which others have all
      Alike& alike = kinds[{device.type(), device.index(), like.scalar_type()}];
      alike.norms.push_back(grad.defined() ? at::Tensor() : known->second);
      if (grad.defined()) alike.gradients.push_back(grad);
    }
  }
  if (!first) return {};
  if (kinds.empty()) return at::zeros({}, at::TensorOptions(*first).dtype(at::kFloat));
  std::vector<at::Tensor> norms;
  norms.reserve(kinds.size());
  for (auto& [kind, alike] : kinds) norms.push_back(total(std::move(alike)).to(*first));
  return norms.size() == 1 ? norms[0] : at::linalg_vector_norm(at::stack(norms));
}

}  // namespace

std::vector<at::Tensor> gradient_norms(const std::vector<at::Tensor>& gradients) {
  if (gradients.empty()) return {};
  return at::_foreach_norm(gradients, /*ord=*/2, at::kFloat);
}

GradientNorm measure_gradients(const std::vector<Group>& groups, const at::Tensor& loss,
                               double max_norm, const NamedTensors& measured, const Sum& sum) {
  const at::NoGradGuard no_grad;
  GradientNorm result;
  result.norm = total_norm(groups, measured);
  if (sum && result.norm.defined()) {
    at::Tensor square = result.norm.to(at::kDouble).square_();
    sum(square);
    result.norm = square.sqrt_().to(at::kFloat);
  }
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
