#include "host/parameters/divided_placement.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/weight_state.h"

#include "host/distributed/block_gradients.h"
#include "host/optim/blockwise.h"
#include "memory/slab.h"
#include "memory/slab_peers.h"

namespace atelier::parameters {

using at::Tensor;
using distributed::BlockGradients;
using distributed::Group;
using model::LoadedModel;

static_assert(memory::kPartBytes % (optim::kQuantizedBlock * sizeof(float)) == 0 &&
              memory::kLeastInBlocks <= optim::kLeastQuantized &&
              memory::kSlabAlignment % (8 * sizeof(float)) == 0);

namespace {

class Sink final : public GradientSink {
 public:
  Sink(BlockGradients& gradients, size_t place) : gradients_(gradients), place_(place) {}
  void add(const Tensor& gradient) override { gradients_.take(place_, gradient); }

 private:
  BlockGradients& gradients_;
  size_t place_;
};

class DividedPlacement final : public ParameterPlacement {
 public:
  DividedPlacement(std::unique_ptr<ParameterPlacement> rest, LoadedModel& model, Group& world,
                   const distributed::ShardGroups& groups);
  ~DividedPlacement() override;

  optim::Parameter add(const Selection::TrainedWeight& trained) override;
  optim::Parameter add(std::string name, const Tensor& leaf) override {
    return rest_->add(std::move(name), leaf);
  }

  bool is_on_host() const override { return rest_->is_on_host(); }
  std::unique_ptr<memory::HostScope> allocate_beside() const override {
    return rest_->allocate_beside();
  }
  std::string note() const override;

  std::vector<optim::Group> share_out(const std::vector<optim::Group>& wholes) override;
  optim::Sum sum() const override { return rest_->sum(); }
  bool is_shared() const override { return true; }
  bool has_wholes() const override { return false; }
  PieceOwner owner() const override { return rest_->owner(); }
  std::unique_ptr<distributed::GradientSums> sum_gradients(Group& group,
                                                           std::vector<Tensor> leaves) override;
  void take_gradients() override;

  BlockRunner& runner(BlockRunner& inner) override { return rest_->runner(inner); }
  void begin_pass() override { rest_->begin_pass(); }
  void end_block(const Block& block) override { gradients_.send(block); }
  void backward(const Tensor& loss, const Tensor& total,
                const std::optional<HostGradients::Move>& move) override {
    rest_->backward(loss, total, move);
  }
  NamedTensors norms() const override { return rest_->norms(); }
  bool has_moved() const override { return rest_->has_moved(); }
  void give_up() override;
  Bytes gradient_bytes(const std::vector<optim::Group>& wholes) const override;
  void clear_gradients() override;
  void publish() override {
    rest_->publish();
    refresh();
  }
  void publish_ahead() override {
    rest_->publish_ahead();
    refresh();
  }
  void complete() override { rest_->complete(); }

 private:
  void refresh();
  struct Divided {
    Weight* weight;
    Tensor resting;  // this process's numbers, flat
    Tensor moved;    // the same, or a copy in host memory
    int64_t begin;   // in the weight
  };
  Tensor make_moved(const Tensor& resting, bool is_there) const;

  std::unique_ptr<ParameterPlacement> rest_;
  LoadedModel& model_;
  int64_t rank_, size_;
  BlockGradients gradients_;
  std::map<const Weight*, const Block*> block_of_;  // of divided components
  std::map<const Block*, memory::Residency*> trained_blocks_;
  std::vector<Divided> divided_;         // by place in gradients_
  std::map<std::string, size_t> names_;  // of parameters: their places
};

DividedPlacement::DividedPlacement(std::unique_ptr<ParameterPlacement> rest, LoadedModel& model,
                                   Group& world, const distributed::ShardGroups& groups)
    : rest_(std::move(rest)),
      model_(model),
      rank_(groups.shards->rank()),
      size_(groups.shards->size()),
      gradients_(world, groups, rest_->is_on_host()) {
  for (const model::LoadedPart& part : model.parts()) {
    if (!model.is_divided(part.detection.component)) continue;
    for (Block* block : model.model().blocks(part.detection.component))
      block->visit_weights([&](const std::string&, Weight& weight) { block_of_[&weight] = block; });
  }
}

DividedPlacement::~DividedPlacement() {
  for (const Divided& divided : divided_) divided.weight->state().set_sink(nullptr);
}

// `is_there`: it rests where the optimizer is.
Tensor DividedPlacement::make_moved(const Tensor& resting, bool is_there) const {
  if (is_there) return resting;
  const memory::HostScope host;
  if (resting.numel() == 0) return at::empty({0}, resting.options().device(at::kCPU));
  Tensor copy = model_.transfer()
                    ->host_memory(static_cast<int64_t>(resting.nbytes()))
                    .view(resting.scalar_type());
  copy.copy_(resting);
  return copy;
}

optim::Parameter DividedPlacement::add(const Selection::TrainedWeight& trained) {
  if (!is_divided(model_, trained)) return rest_->add(trained);
  Weight& weight = *trained.weight;
  memory::Residency& residency = *model_.residency(trained.component);
  std::vector<distributed::FlatLayout::Extent> extents;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto [begin, count] = residency.extent(weight, rank);
    extents.push_back({.begin = begin, .count = count});
  }
  Divided divided = {.weight = &weight,
                     .resting = residency.own_numbers(weight),
                     .moved = {},
                     .begin = extents[static_cast<size_t>(rank_)].begin};
  divided.moved =
      make_moved(divided.resting, residency.keeps_on_host(weight) || !rest_->is_on_host());
  const Block& block = *block_of_.at(&weight);
  trained_blocks_[&block] = &residency;
  const at::TensorOptions options = divided.resting.options();
  const size_t place = gradients_.add(block, std::move(extents), options.device(model_.device()));
  weight.state().set_sink(std::make_shared<Sink>(gradients_, place));
  optim::Parameter parameter = {trained.component + "." + trained.path,
                                at::empty(weight.sizes(), options.device(at::kMeta))};
  names_.emplace(parameter.name, place);
  divided_.push_back(std::move(divided));
  return parameter;
}

std::string DividedPlacement::note() const {
  return std::to_string(trained_blocks_.size()) + " blocks that are trained, their gradients and " +
         "optimizer state are divided among " + std::to_string(size_) +
         " processes; of the rest, " + rest_->note();
}

std::vector<optim::Group> DividedPlacement::share_out(const std::vector<optim::Group>& wholes) {
  std::vector<optim::Group> others = wholes, pieces = wholes;
  for (optim::Group& group : others)
    std::erase_if(group.parameters, [&](const auto& one) { return names_.contains(one.name); });
  const std::vector<optim::Group> shared = rest_->share_out(others);
  for (size_t i = 0; i < pieces.size(); ++i) {
    auto other = shared[i].parameters.begin();
    for (optim::Parameter& parameter : pieces[i].parameters) {
      const auto found = names_.find(parameter.name);
      if (found == names_.end()) {
        parameter = *other++;
        continue;
      }
      const Divided& divided = divided_[found->second];
      parameter.leaf = divided.moved;
      parameter.piece = optim::Piece{divided.weight->sizes().vec(), divided.begin};
    }
  }
  return pieces;
}

std::unique_ptr<distributed::GradientSums> DividedPlacement::sum_gradients(
    Group& group, std::vector<Tensor> leaves) {
  std::erase_if(leaves, [](const Tensor& leaf) { return leaf.is_meta(); });
  return rest_->sum_gradients(group, std::move(leaves));
}

void DividedPlacement::take_gradients() {
  rest_->take_gradients();
  gradients_.finish();
  for (size_t place = 0; place < divided_.size(); ++place)
    divided_[place].moved.mutable_grad() = gradients_.piece(place);
}

void DividedPlacement::give_up() {
  gradients_.settle();
  rest_->give_up();
}

ParameterPlacement::Bytes DividedPlacement::gradient_bytes(
    const std::vector<optim::Group>& wholes) const {
  Bytes bytes = rest_->gradient_bytes(wholes);
  (is_on_host() ? bytes.host : bytes.device) += gradients_.sum_bytes();
  bytes.device += gradients_.bytes_under_way();
  return bytes;
}

void DividedPlacement::clear_gradients() {
  rest_->clear_gradients();
  for (Divided& divided : divided_) divided.moved.mutable_grad() = Tensor();
  gradients_.clear();
}

// Blocks come as they were moved the next time that they come.
void DividedPlacement::refresh() {
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

}  // namespace

bool is_divided(const LoadedModel& model, const Selection::TrainedWeight& trained) {
  return model.is_divided(trained.component) && model.is_streamed(*trained.weight);
}

std::unique_ptr<ParameterPlacement> divide_parameters(std::unique_ptr<ParameterPlacement> rest,
                                                      LoadedModel& model, Group& group,
                                                      const distributed::ShardGroups& groups) {
  return std::make_unique<DividedPlacement>(
      std::move(rest), model, group,
      distributed::ShardGroups{
          .shards = group.neighbours(groups.shards->size(), "gradients of blocks"),
          .replicas = groups.replicas});
}

}  // namespace atelier::parameters
