#include "host/parameters/host_parameters.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "host/report/text.h"

namespace atelier::parameters {

using at::Tensor;

Tensor copy_on_host(memory::TransferDevice& transfer, const Tensor& value) {
  const memory::HostScope host;
  if (value.numel() == 0) return at::empty(value.sizes(), value.options().device(at::kCPU));
  Tensor copy = transfer.host_memory(static_cast<int64_t>(value.nbytes()))
                    .view(value.scalar_type())
                    .view(value.sizes());
  return copy.copy_(value);
}

HostParameters::HostParameters(model::LoadedModel& model, memory::TransferDevice& transfer,
                               int64_t least_bytes)
    : model_(model), transfer_(transfer), least_bytes_(least_bytes), gradients_(transfer) {}

HostParameters::~HostParameters() {
  for (Weight* weight : streamed_) weight->state().set_sink(nullptr);
  for (const Copy& copy : copies_) keep_gradients(copy.leaf);
}

std::optional<optim::Parameter> HostParameters::add(const std::string& name,
                                                    const Selection::TrainedWeight& trained,
                                                    const Tensor& value, const Block& block) {
  if (const auto bytes = static_cast<int64_t>(value.nbytes()); bytes < least_bytes_) {
    kept_bytes_ += bytes;
    return std::nullopt;
  }
  trained_blocks_[&block] = model_.residency(trained.component);
  optim::Parameter parameter = {name, value};
  trained.weight->state().set_sink(gradients_.add(parameter, count_++, &block));
  streamed_.push_back(trained.weight);
  return parameter;
}

optim::Parameter HostParameters::add_copy(std::string name, const Tensor& leaf) {
  const Tensor value = copy_on_host(transfer_, leaf.detach());
  optim::Parameter parameter = {std::move(name), value};
  send_gradients(leaf, gradients_.add(parameter, count_++, /*block=*/nullptr));
  copies_.push_back({value, leaf});
  return parameter;
}

std::string HostParameters::note() const {
  if (kept_bytes_ == 0) return {};
  return "small trained weights stay on the device: " + report::bytes_text(kept_bytes_);
}

void HostParameters::backward(const Tensor& loss, const Tensor& total,
                              const std::optional<HostGradients::Move>& move) {
  // Once a block has moved, the step is brought to its end.
  std::optional<ops::StopScope> to_the_end;
  if (move) to_the_end.emplace([] {});
  gradients_.begin_backward(total, move);
  loss.backward();
  gradients_.finish();
}

void HostParameters::clear_gradients() {
  gradients_.clear();
  for (const Copy& copy : copies_) Tensor(copy.leaf).mutable_grad() = Tensor();
}

void HostParameters::publish() {
  const at::NoGradGuard no_grad;
  for (const auto& [block, residency] : trained_blocks_) residency->refresh(*block);
  memory::Ticket last;
  for (const Copy& copy : copies_)
    last = transfer_.copy_in(copy.value, copy.leaf.detach(), transfer_.computed());
  transfer_.compute_after(last);
  transfer_.wait(last);
}

}  // namespace atelier::parameters
