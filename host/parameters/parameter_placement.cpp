#include "host/parameters/parameter_placement.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "host/parameters/divided_placement.h"
#include "host/parameters/sharded_placement.h"
#include "host/report/problems.h"

namespace atelier::parameters {

using order::Training;

using at::Tensor;
using model::LoadedModel;

namespace {

std::string name_of(const Selection::TrainedWeight& trained) {
  return trained.component + "." + trained.path;
}

// Values get storage of their own: those of the file stay what they are for a second reading.
Tensor make_leaf(Weight& weight, const Tensor& value, at::Device device) {
  weight.set(value.to(device, value.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  weight.state().set_trainable(true);
  return weight.state().leaf();
}

class DevicePlacement final : public ParameterPlacement {
 public:
  explicit DevicePlacement(at::Device device) : device_(device) {}

  optim::Parameter add(const Selection::TrainedWeight& trained) override {
    return {name_of(trained), make_leaf(*trained.weight, trained.weight->draw(), device_)};
  }
  optim::Parameter add(std::string name, const Tensor& leaf) override {
    return {std::move(name), leaf};
  }

 private:
  at::Device device_;
};

// Parameters are the values of weights that are streamed, and copies of leaves on the device.
class HostPlacement final : public ParameterPlacement {
 public:
  // Weights of less than `least_bytes` stay on the device, and are copied like other leaves.
  HostPlacement(LoadedModel& model, int64_t least_bytes);
  ~HostPlacement() override;

  optim::Parameter add(const Selection::TrainedWeight& trained) override;
  optim::Parameter add(std::string name, const Tensor& leaf) override;

  bool is_on_host() const override { return true; }
  std::unique_ptr<memory::HostScope> allocate_beside() const override {
    return std::make_unique<memory::HostScope>();
  }
  std::string note() const override;

  std::unique_ptr<distributed::GradientSums> sum_gradients(distributed::Group& group,
                                                           std::vector<Tensor> leaves) override {
    return std::make_unique<distributed::GradientSums>(group, std::move(leaves),
                                                       /*keeps_memory=*/true);
  }

  BlockRunner& runner(BlockRunner& inner) override { return expecting_.emplace(inner, gradients_); }
  void begin_pass() override { gradients_.begin_pass(); }
  void backward(const Tensor& loss, const Tensor& total,
                const std::optional<HostGradients::Move>& move) override;
  NamedTensors norms() const override { return gradients_.norms(); }
  bool has_moved() const override { return gradients_.has_moved(); }
  void give_up() override { gradients_.give_up(); }
  Bytes gradient_bytes(const std::vector<optim::Group>& wholes) const override {
    Bytes bytes = ParameterPlacement::gradient_bytes(wholes);
    bytes.host += gradients_.buffer_bytes();
    return bytes;
  }
  void clear_gradients() override;
  void publish() override;

 private:
  struct Copy {
    Tensor value, leaf;  // on the host and on the device
  };
  std::shared_ptr<GradientSink> connect(const optim::Parameter& parameter, const Block* block);

  LoadedModel& model_;
  int64_t least_bytes_;
  std::unique_ptr<memory::TransferDevice> own_transfer_;  // of a model that nothing of is streamed
  memory::TransferDevice& transfer_;
  HostGradients gradients_;
  std::optional<ExpectingRunner> expecting_;
  std::map<const Weight*, const Block*> block_of_;  // of streamed components
  std::map<const Block*, memory::Residency*> trained_blocks_;
  std::vector<Weight*> streamed_;
  std::vector<Copy> copies_;
  size_t count_ = 0;        // of parameters
  int64_t kept_bytes_ = 0;  // of weights that stay on the device for being small
};

HostPlacement::HostPlacement(LoadedModel& model, int64_t least_bytes)
    : model_(model),
      least_bytes_(least_bytes),
      own_transfer_(model.transfer() == nullptr ? memory::make_transfer_device(model.device())
                                                : nullptr),
      transfer_(own_transfer_ ? *own_transfer_ : *model.transfer()),
      gradients_(transfer_) {
  for (const model::LoadedPart& part : model.parts()) {
    if (model.residency(part.detection.component) == nullptr) continue;
    for (Block* block : model.model().blocks(part.detection.component)) {
      block->visit([&](nn::Module& module) {
        for (const WeightPtr& weight : module.weights()) block_of_[weight.get()] = block;
      });
    }
  }
}

HostPlacement::~HostPlacement() {
  for (Weight* weight : streamed_) weight->state().set_sink(nullptr);
  for (const Copy& copy : copies_) keep_gradients(copy.leaf);
}

std::shared_ptr<GradientSink> HostPlacement::connect(const optim::Parameter& parameter,
                                                     const Block* block) {
  return gradients_.add(parameter, count_++, block);
}

optim::Parameter HostPlacement::add(const Selection::TrainedWeight& trained) {
  Weight& weight = *trained.weight;
  if (!model_.is_streamed(weight))
    return add(name_of(trained), make_leaf(weight, weight.draw(), model_.device()));
  memory::Residency& residency = *model_.residency(trained.component);
  const Tensor value = residency.host_value(weight);
  if (const auto bytes = static_cast<int64_t>(value.nbytes()); bytes < least_bytes_) {
    kept_bytes_ += bytes;
    return add(name_of(trained), make_leaf(weight, value, model_.device()));
  }
  const Block* const block = block_of_.at(&weight);
  trained_blocks_[block] = &residency;
  optim::Parameter parameter = {name_of(trained), value};
  weight.state().set_sink(connect(parameter, block));
  streamed_.push_back(&weight);
  return parameter;
}

optim::Parameter HostPlacement::add(std::string name, const Tensor& leaf) {
  const Tensor value = transfer_.host_memory(static_cast<int64_t>(leaf.nbytes()))
                           .view(leaf.scalar_type())
                           .view(leaf.sizes());
  value.copy_(leaf.detach());
  optim::Parameter parameter = {std::move(name), value};
  send_gradients(leaf, connect(parameter, nullptr));
  copies_.push_back({value, leaf});
  return parameter;
}

std::string HostPlacement::note() const {
  if (kept_bytes_ == 0) return {};
  return "small trained weights stay on the device: " +
         report::format_bytes(static_cast<uint64_t>(kept_bytes_));
}

void HostPlacement::backward(const Tensor& loss, const Tensor& total,
                             const std::optional<HostGradients::Move>& move) {
  // Once a block has moved, the step is brought to its end.
  std::optional<ops::StopScope> to_the_end;
  if (move) to_the_end.emplace([] {});
  gradients_.begin_backward(total, move);
  loss.backward();
  gradients_.finish();
}

void HostPlacement::clear_gradients() {
  gradients_.clear();
  for (const Copy& copy : copies_) Tensor(copy.leaf).mutable_grad() = Tensor();
}

void HostPlacement::publish() {
  const at::NoGradGuard no_grad;
  for (const auto& [block, residency] : trained_blocks_) residency->refresh(*block);
  memory::Ticket last;
  for (const Copy& copy : copies_)
    last = transfer_.copy_in(copy.value, copy.leaf.detach(), transfer_.computed());
  transfer_.compute_after(last);
  transfer_.wait(last);
}

}  // namespace

ParameterPlacement::~ParameterPlacement() = default;

void ParameterPlacement::backward(const Tensor& loss, const Tensor& /*total*/,
                                  const std::optional<HostGradients::Move>& /*move*/) {
  loss.backward();
}

ParameterPlacement::Bytes ParameterPlacement::gradient_bytes(
    const std::vector<optim::Group>& wholes) const {
  int64_t bytes = 0;
  for (const optim::Group& group : wholes) {
    for (const optim::Parameter& parameter : group.parameters) {
      const Tensor& gradient = parameter.leaf.grad();
      bytes += gradient.defined() ? static_cast<int64_t>(gradient.nbytes()) : 0;
    }
  }
  return is_on_host() ? Bytes{.host = bytes} : Bytes{.device = bytes};
}

std::unique_ptr<distributed::GradientSums> ParameterPlacement::sum_gradients(
    distributed::Group& group, std::vector<Tensor> leaves) {
  return std::make_unique<distributed::GradientSums>(group, std::move(leaves));
}

std::unique_ptr<ParameterPlacement> place_parameters(LoadedModel& model, const Selection& selection,
                                                     const Training& config,
                                                     distributed::Group* group) {
  const bool is_wanted =
      config.offload.optimizer && (!model.device().is_cpu() || model.is_simulated());
  const bool rests_on_host =
      std::any_of(selection.weights.begin(), selection.weights.end(),
                  [&](const Selection::TrainedWeight& trained) {
                    return model.is_streamed(*trained.weight) && !is_divided(model, trained);
                  });
  const bool is_shared = group != nullptr && shard_ranks(config, group->ranks()) > 1;
  std::unique_ptr<ParameterPlacement> whole;
  // Wholes of what is shared out stay on the device where they fit, and pieces go to the host.
  if (!rests_on_host && (!is_wanted || is_shared)) {
    whole = std::make_unique<DevicePlacement>(model.device());
  } else {
    whole = std::make_unique<HostPlacement>(model, config.offload.least_bytes);
  }
  if (!is_shared) return whole;
  const bool keeps_on_host =
      std::ranges::any_of(selection.weights, [&](const Selection::TrainedWeight& trained) {
        return is_divided(model, trained) &&
               model.residency(trained.component)->keeps_on_host(*trained.weight);
      });
  return share_parameters(std::move(whole), model, selection, config, *group,
                          /*on_host=*/(is_wanted || keeps_on_host) && !rests_on_host);
}

}  // namespace atelier::parameters
