#include "host/model/resting_components.h"

#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include "atelier/host/weight_state.h"

#include "memory/activation_budget.h"
#include "memory/transfer_device.h"

namespace atelier::model {
namespace {

// Calls `visit` with what each weight that can rest elsewhere is made of.
void visit_stores(LoadedModel& model, std::string_view component,
                  const std::function<void(Weight&, std::vector<at::Tensor>)>& visit) {
  model.model().component(component).visit_weights([&](const std::string&, Weight& weight) {
    if (!weight.is_loaded()) return;
    std::vector<at::Tensor> parts = weight.state().store()->parts();
    if (!parts.empty()) visit(weight, std::move(parts));
  });
}

int64_t bytes_of(LoadedModel& model, std::string_view component) {
  int64_t bytes = 0;
  visit_stores(model, component, [&](Weight&, const std::vector<at::Tensor>& parts) {
    for (const at::Tensor& part : parts) bytes += static_cast<int64_t>(part.nbytes());
  });
  return bytes;
}

}  // namespace

RestingComponents::RestingComponents(LoadedModel& model)
    : model_(model), listener_(model.on_loaded([this](std::string_view component) {
        if (const auto found = resting_.find(component); found != resting_.end())
          resting_.erase(found);
      })) {}

bool RestingComponents::is_resting(std::string_view component) const {
  return resting_.contains(component) && model_.is_loaded(component);
}

void RestingComponents::rest() {
  if (model_.device().is_cpu() && !model_.is_simulated()) return;
  for (const PresentComponent& component : model_.stages().components) {
    if (may_rest(component.name)) move(component.name, /*to_device=*/false);
  }
  if (!model_.device().is_cpu()) at::accelerator::emptyCache();
}

bool RestingComponents::may_rest(const std::string& component) const {
  return model_.is_loaded(component) && !model_.is_streamed(component) && !is_resting(component) &&
         bytes_of(model_, component) <= memory::available_bytes(at::kCPU);
}

void RestingComponents::wake(std::string_view component) {
  if (is_resting(component)) move(component, /*to_device=*/true);
}

void RestingComponents::move(std::string_view component, bool to_device) {
  const at::Device device = to_device ? model_.device() : at::kCPU;
  visit_stores(model_, component, [&](Weight& weight, std::vector<at::Tensor> parts) {
    std::optional<memory::HostScope> on_host;
    if (!to_device) on_host.emplace();
    for (at::Tensor& part : parts)
      part = part.to(device, part.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    weight.state().set_store(weight.state().store()->over(std::move(parts)));
    weight.state().keep_derived({});
  });
  if (to_device)
    resting_.erase(resting_.find(component));
  else
    resting_.emplace(component);
}

}  // namespace atelier::model
