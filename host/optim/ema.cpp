#include "host/optim/ema.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/model/components.h"
#include "host/optim/optimizer_base.h"

namespace atelier::optim {

namespace {

at::Tensor memory_for(const at::Tensor& leaf, memory::TransferDevice* transfer) {
  if (transfer == nullptr) return leaf;
  if (leaf.numel() == 0) return leaf.cpu();
  return transfer->host_memory(static_cast<int64_t>(leaf.nbytes()))
      .view(leaf.scalar_type())
      .view(leaf.sizes());
}

}  // namespace

Ema::Ema(const std::vector<Group>& groups, double decay, memory::TransferDevice* transfer,
         const std::map<std::string, std::string>& turns)
    : transfer_(transfer), decay_(decay) {
  num_updates_[""] = at::zeros({}, at::kLong);
  for (const auto& [component, turn] : turns) num_updates_[turn] = at::zeros({}, at::kLong);
  for (const Group& group : groups) {
    for (const Parameter& parameter : group.parameters) {
      const at::Tensor leaf = parameter.leaf.detach();
      const auto turn = turns.find(model::component_of(parameter.name));
      averages_.push_back({.name = parameter.name,
                           .turn = turn == turns.end() ? "" : turn->second,
                           .leaf = leaf,
                           .value = leaf.to(at::kCPU, at::kFloat, /*non_blocking=*/false,
                                            /*copy=*/true),
                           .dtype = parameter.dtype(),
                           .shard = parameter.shard,
                           .on_host = memory_for(leaf, transfer),
                           .put_aside = {}});
    }
  }
}

void Ema::read() {
  if (transfer_ == nullptr) return;
  const memory::Ticket computed = transfer_->computed();
  for (const Average& average : averages_)
    if (average.leaf.numel() > 0)
      arrived_ = transfer_->copy_out(average.leaf, average.on_host, computed);
}

void Ema::release() {
  if (transfer_ != nullptr) transfer_->compute_after(arrived_);
}

void Ema::update(std::string_view moved) {
  const at::NoGradGuard no_grad;
  if (transfer_ != nullptr) transfer_->wait(arrived_);
  for (auto& [turn, updates] : num_updates_) {
    if (!turn.empty() && turn != moved) continue;
    const auto n = static_cast<double>((*updates.mutable_data_ptr<int64_t>())++);
    const double decay = std::min(decay_, (1.0 + n) / (10.0 + n));
    for (Average& average : averages_) {
      if (average.turn == turn)
        average.value.lerp_(average.on_host.to(average.dtype).to(at::kFloat), 1.0 - decay);
    }
  }
}

void Ema::swap() {
  const at::NoGradGuard no_grad;
  release();
  for (Average& average : averages_) {
    if (average.put_aside.defined()) {
      average.leaf.copy_(average.put_aside);
      average.put_aside.reset();
    } else {
      average.put_aside = average.leaf.to(at::kCPU, average.leaf.scalar_type(),
                                          /*non_blocking=*/false, /*copy=*/true);
      average.leaf.copy_(average.value);
    }
  }
}

NamedTensors Ema::state() const {
  NamedTensors state;
  for (const auto& [turn, updates] : num_updates_)
    state["num_updates" + (turn.empty() ? "" : "." + turn)] = updates;
  for (const Average& average : averages_) state[average.name] = average.value;
  return state;
}

Shards Ema::shards() const {
  Shards shards;
  for (const Average& average : averages_)
    if (average.shard) shards[average.name] = *average.shard;
  return shards;
}

void Ema::load_state(const NamedTensors& state) {
  copy_state("average of weights", state, this->state());
}

}  // namespace atelier::optim
