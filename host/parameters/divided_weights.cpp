#include "host/parameters/divided_weights.h"

#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/weight_state.h"

#include "host/optim/blockwise.h"
#include "host/parameters/host_parameters.h"
#include "memory/slab.h"
#include "memory/slab_peers.h"

namespace atelier::parameters {

using at::Tensor;
using distributed::FlatLayout;

static_assert(memory::kPartBytes % (optim::kQuantizedBlock * sizeof(float)) == 0 &&
              memory::kLeastInBlocks <= optim::kLeastQuantized &&
              memory::kSlabAlignment % (8 * sizeof(float)) == 0);

namespace {

class Sink final : public GradientSink {
 public:
  Sink(GradientSums& sums, size_t place) : sums_(sums), place_(place) {}
  void add(const Tensor& gradient) override { sums_.take(place_, gradient); }

 private:
  GradientSums& sums_;
  size_t place_;
};

}  // namespace

bool is_divided(const model::LoadedModel& model, const Selection::TrainedWeight& trained) {
  return model.is_divided(trained.component) && model.is_streamed(*trained.weight);
}

DividedWeights::DividedWeights(model::LoadedModel& model, int rank, int size, bool on_host)
    : model_(model), on_host_(on_host), rank_(rank), size_(size) {}

DividedWeights::~DividedWeights() {
  for (const Divided& divided : divided_) divided.weight->state().set_sink(nullptr);
}

optim::Parameter DividedWeights::add(const Selection::TrainedWeight& trained, const Block& block) {
  Weight& weight = *trained.weight;
  memory::Residency& residency = *model_.residency(trained.component);
  std::vector<FlatLayout::Extent> extents;
  for (int rank = 0; rank < size_; ++rank) {
    const auto [begin, count] = residency.extent(weight, rank);
    extents.push_back({.begin = begin, .count = count});
  }
  Divided divided = {.weight = &weight,
                     .resting = residency.own_numbers(weight),
                     .moved = {},
                     .begin = extents[static_cast<size_t>(rank_)].begin};
  const bool is_there = residency.keeps_on_host(weight) || !on_host_;  // where the optimizer is
  divided.moved = is_there ? divided.resting : copy_on_host(*model_.transfer(), divided.resting);
  trained_blocks_[&block] = &residency;
  const at::TensorOptions options = divided.resting.options();
  cuts_.push_back({&block, options.device(model_.device()), std::move(extents)});
  optim::Parameter parameter = {trained.component + "." + trained.path,
                                at::empty(weight.sizes(), options.device(at::kMeta))};
  places_.emplace(parameter.name, divided_.size());
  names_.push_back(parameter.name);
  divided_.push_back(std::move(divided));
  return parameter;
}

void DividedWeights::cut(optim::Parameter& parameter) const {
  const Divided& divided = divided_[places_.at(parameter.name)];
  parameters::cut(parameter, {.begin = divided.begin}, divided.moved);
}

std::string DividedWeights::note() const {
  return std::to_string(trained_blocks_.size()) + " blocks that are trained, their gradients and " +
         "optimizer state are divided among " + std::to_string(size_) + " processes";
}

void DividedWeights::send_gradients(GradientSums& sums) {
  for (size_t place = 0; place < divided_.size(); ++place)
    divided_[place].weight->state().set_sink(std::make_shared<Sink>(sums, place));
}

void DividedWeights::take_gradients(const GradientSums& sums) {
  for (size_t place = 0; place < divided_.size(); ++place)
    divided_[place].moved.mutable_grad() = sums.divided_shard(place);
}

void DividedWeights::publish() {
  const at::NoGradGuard no_grad;
  memory::TransferDevice& transfer = *model_.transfer();
  memory::Ticket last;
  for (const Divided& divided : divided_) {
    if (!divided.moved.is_same(divided.resting) && divided.moved.numel() > 0)
      last = transfer.copy_in(divided.moved, divided.resting, transfer.computed());
  }
  transfer.compute_after(last);
  transfer.wait(last);
  for (const auto& [block, residency] : trained_blocks_) residency->refresh(*block);
}

}  // namespace atelier::parameters
