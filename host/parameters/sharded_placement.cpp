#include "host/parameters/sharded_placement.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "formats/escape.h"
#include "host/distributed/handshake.h"
#include "host/distributed/shards.h"
#include "host/optim/blockwise.h"
#include "host/order/training_checks.h"
#include "host/parameters/arriving_values.h"
#include "host/parameters/divided_placement.h"

namespace atelier::parameters {

using order::ShardSettings;
using order::Training;

using at::Tensor;
using distributed::FlatLayout;
using distributed::Group;

static_assert(distributed::kBlockNumbers % optim::kQuantizedBlock == 0 &&
              distributed::kLeastInBlocks <= optim::kLeastQuantized &&
              distributed::kSmallBlockNumbers % 8 == 0);

namespace {

// Blocks of the model in the order in which they run, and those of trained tensors by their names.
struct BlockNames {
  std::vector<const Block*> blocks;
  std::map<std::string, const Block*> of;  // what is outside of blocks is not there
};

BlockNames name_blocks(model::LoadedModel& model, const Selection& selection) {
  BlockNames names;
  std::map<const nn::Module*, const Block*> of_module;
  std::map<const Weight*, const Block*> of_weight;
  for (const model::LoadedPart& part : model.parts()) {
    for (Block* block : model.model().blocks(part.detection.component)) {
      names.blocks.push_back(block);
      block->visit([&](nn::Module& module) {
        of_module[&module] = block;
        for (const WeightPtr& weight : module.weights()) of_weight[weight.get()] = block;
      });
    }
  }
  const auto add = [&](const std::string& name, const auto& blocks, const auto* key) {
    if (const auto found = blocks.find(key); found != blocks.end())
      names.of.emplace(name, found->second);
  };
  for (const auto& trained : selection.weights)
    add(trained.component + "." + trained.path, of_weight, trained.weight);
  for (const auto& layer : selection.layers) {
    for (const char* factor : {".lora_A", ".lora_B"})
      add(layer.component + "." + layer.path + factor, of_module, layer.linear);
  }
  return names;
}

// Ranks of a group; 0: the text is no number.
int group_size(const std::string& group, const distributed::Ranks& ranks) {
  if (group == "all") return ranks.size;
  if (group == "node") return ranks.local_size;
  int size = 0;
  const char* const end = group.data() + group.size();
  const auto [rest, failure] = std::from_chars(group.data(), end, size);
  return failure == std::errc() && rest == end ? std::max(size, 0) : 0;
}

// Every trained tensor lies whole on each rank, and in a piece on the rank that moves it:
//
//   rank 0   whole, its gradient    -- reduce-scatter -->   piece 0 with its sum, optimizer state 0
//   rank 1   whole, its gradient    -- reduce-scatter -->   piece 1 with its sum, optimizer state 1
//            whole                  <--  all-gather  ---    moved pieces
//
// The calls of a step, in their order: sum_gradients() has been asked for once; backward passes
// send gradients bucket by bucket as they are made; take_gradients() gives each piece its sum; the
// optimizer moves the pieces; publish_ahead() begins to send them back, and each block of the next
// step waits for its own (ArrivingValues), or complete() for all. publish() does both at once;
// adopt() makes pieces of wholes that were loaded. With groups that each hold everything, sums go
// between the groups as well, and each group gathers from its own.
class ShardedPlacement final : public ParameterPlacement {
 public:
  ShardedPlacement(std::unique_ptr<ParameterPlacement> whole, const Training& config, Group& world,
                   distributed::ShardGroups groups,
                   std::unique_ptr<memory::TransferDevice> own_transfer,
                   memory::TransferDevice* transfer, std::set<std::string> denoisers,
                   BlockNames names)
      : whole_(std::move(whole)),
        stage_(config.shards.stage),
        computes_together_(config.sequence_parallel > 1 || stage_ == 3),
        has_masters_(transfer != nullptr &&
                     config.optimizer.master_weights == optim::MasterWeights::kFp32),
        world_(world),
        groups_(std::move(groups)),
        own_transfer_(std::move(own_transfer)),
        transfer_(transfer),
        denoisers_(std::move(denoisers)),
        names_(std::move(names)) {}

  optim::Parameter add(const Selection::TrainedWeight& trained) override {
    return whole_->add(trained);
  }
  optim::Parameter add(std::string name, const Tensor& leaf) override {
    return whole_->add(std::move(name), leaf);
  }

  bool is_on_host() const override { return transfer_ != nullptr || whole_->is_on_host(); }
  std::unique_ptr<memory::HostScope> allocate_beside() const override {
    return is_on_host() ? std::make_unique<memory::HostScope>() : nullptr;
  }
  std::string note() const override;

  std::vector<optim::Group> share_out(const std::vector<optim::Group>& wholes) override;
  optim::Sum sum() const override {
    return [this](Tensor& value) { groups_.add_up(world_, value); };
  }
  bool is_shared() const override { return true; }
  PieceOwner owner() const override {
    return {.index = groups_.shards->rank(),
            .count = groups_.shards->size(),
            .is_first_copy = !groups_.replicas || groups_.replicas->is_first(),
            .rank = world_.rank(),
            .num_ranks = world_.size()};
  }
  std::unique_ptr<distributed::GradientSums> sum_gradients(Group& group,
                                                           std::vector<Tensor> leaves) override;
  void take_gradients() override;

  BlockRunner& runner(BlockRunner& inner) override {
    return awaiting_.emplace(whole_->runner(inner), *values_);
  }
  void begin_pass() override {
    values_->await(/*block=*/nullptr);
    whole_->begin_pass();
  }
  void backward(const Tensor& loss, const Tensor& total,
                const std::optional<HostGradients::Move>& move) override {
    whole_->backward(loss, total, move);
  }
  void give_up() override {
    complete();  // which the others come to, too, before anything else is exchanged
    whole_->give_up();
  }
  Bytes gradient_bytes(const std::vector<optim::Group>& wholes) const override;
  void clear_gradients() override;
  void publish() override;
  void publish_ahead() override;
  void complete() override { values_->complete(); }
  void adopt() override;

 private:
  struct Shared {
    optim::Parameter whole;
    Tensor piece;  // flat
    FlatLayout::Extent extent;

    Tensor own_part() const {
      return whole.leaf.detach().view(-1).narrow(0, extent.begin, extent.count);
    }
  };
  struct Gathering {
    const FlatLayout::Bucket* bucket;
    Tensor whole, part;
    distributed::Ticket sent;
  };
  Tensor make_piece(const Tensor& own_part) const;
  void make_values();
  void open_values();
  Tensor staging(const Tensor& part);
  Gathering gather(const FlatLayout::Bucket& bucket);
  void spread(Gathering& gathering);

  std::unique_ptr<ParameterPlacement> whole_;
  int stage_;
  bool computes_together_;  // a step, which all may have to leave in the middle of it
  bool has_masters_;        // pieces in host memory are in float32, and rounded when they are sent
  Group& world_;
  distributed::ShardGroups groups_;
  std::unique_ptr<memory::TransferDevice> own_transfer_;
  memory::TransferDevice* transfer_;  // null: pieces are parts of the tensors themselves
  std::set<std::string> denoisers_;
  const BlockNames names_;
  std::optional<FlatLayout> layout_;
  std::vector<Shared> shared_;  // in the optimizer's order
  Tensor staging_;              // on the host, of pieces of a bucket on their way to the device
  const distributed::ShardedGradients* gradients_ = nullptr;
  // By bucket, whether the step has a gradient for it; nullopt: no step is under way.
  std::optional<std::vector<bool>> is_moved_;
  std::optional<ArrivingValues> values_;
  std::optional<AwaitingRunner> awaiting_;
};

std::string ShardedPlacement::note() const {
  const std::string ranks = std::to_string(groups_.shards->size());
  std::string note = (stage_ == 1 ? "optimizer state is" : "optimizer state and gradients are");
  note += " shared out among " + ranks + " processes";
  if (groups_.replicas)
    note += ", in " + std::to_string(groups_.replicas->size()) + " groups of them";
  const std::string other = whole_->note();
  return other.empty() ? note : note + "; " + other;
}

Tensor ShardedPlacement::make_piece(const Tensor& own_part) const {
  if (transfer_ == nullptr) return own_part;
  const memory::HostScope host;
  if (has_masters_) return own_part.to(at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  if (own_part.numel() == 0) return at::empty({0}, own_part.options().device(at::kCPU));
  Tensor piece =
      transfer_->host_memory(static_cast<int64_t>(own_part.nbytes())).view(own_part.scalar_type());
  piece.copy_(own_part);
  return piece;
}

std::vector<optim::Group> ShardedPlacement::share_out(const std::vector<optim::Group>& wholes) {
  std::vector<Tensor> leaves;
  for (const optim::Group& group : wholes) {
    for (const optim::Parameter& parameter : group.parameters) leaves.push_back(parameter.leaf);
  }
  layout_.emplace(leaves, groups_.shards->size());
  std::vector<optim::Group> pieces = wholes;
  for (optim::Group& group : pieces) {
    for (optim::Parameter& parameter : group.parameters) {
      Shared& shared = shared_.emplace_back();
      shared.whole = parameter;
      shared.extent = layout_->extent(shared_.size() - 1, groups_.shards->rank());
      shared.piece = make_piece(shared.own_part());
      if (has_masters_) parameter.master_of = parameter.dtype();
      parameter.leaf = shared.piece;
      parameter.piece = optim::Piece{shared.whole.leaf.sizes().vec(), shared.extent.begin};
    }
  }
  make_values();
  return pieces;
}

void ShardedPlacement::make_values() {
  std::vector<std::vector<const Block*>> needs;
  for (const FlatLayout::Bucket& bucket : layout_->buckets()) {
    std::vector<const Block*>& blocks = needs.emplace_back();
    for (const FlatLayout::Place& place : bucket.places) {
      const auto found = names_.of.find(shared_[place.tensor].whole.name);
      blocks.push_back(found == names_.of.end() ? nullptr : found->second);
    }
  }
  values_.emplace(names_.blocks, needs, [this](size_t bucket) -> std::function<void()> {
    const at::NoGradGuard no_grad;
    auto coming = std::make_shared<Gathering>(gather(layout_->buckets()[bucket]));
    return [this, coming] { spread(*coming); };
  });
}

std::unique_ptr<distributed::GradientSums> ShardedPlacement::sum_gradients(
    Group& group, std::vector<Tensor> leaves) {
  // In a step of one denoiser the others get no gradients.
  const auto expects = [this](size_t place, const std::string& denoiser) {
    const std::string component = order::component_of(shared_[place].whole.name);
    return stage_ > 1 &&
           (denoiser.empty() || component == denoiser || !denoisers_.contains(component));
  };
  // What gathers on the host is whole there anyway, and is sent once.
  auto gradients = std::make_unique<distributed::ShardedGradients>(
      group, groups_, std::move(leaves), *layout_,
      distributed::ShardedGradients::Options{.each_pass = stage_ > 1 && !whole_->is_on_host(),
                                             .on_host = is_on_host(),
                                             .expects = expects});
  gradients_ = gradients.get();
  return gradients;
}

void ShardedPlacement::take_gradients() {
  is_moved_.emplace(layout_->buckets().size());
  for (size_t place = 0; place < shared_.size(); ++place) {
    const Tensor gradient = gradients_->piece(place);
    shared_[place].piece.mutable_grad() = gradient;
    if (gradient.defined()) (*is_moved_)[layout_->bucket_of(place)] = true;
  }
}

ParameterPlacement::Bytes ShardedPlacement::gradient_bytes(
    const std::vector<optim::Group>& wholes) const {
  Bytes bytes = whole_->gradient_bytes(wholes);
  if (gradients_ == nullptr) return bytes;
  (is_on_host() ? bytes.host : bytes.device) += gradients_->sum_bytes();
  (whole_->is_on_host() ? bytes.host : bytes.device) += gradients_->bytes_under_way();
  return bytes;
}

void ShardedPlacement::clear_gradients() {
  whole_->clear_gradients();
  for (Shared& shared : shared_) shared.piece.mutable_grad() = Tensor();
}

// Memory in which the values of `part` come together where pieces are: the part itself, or pinned.
Tensor ShardedPlacement::staging(const Tensor& part) {
  if (transfer_ == nullptr || part.is_cpu()) return part;
  const auto bytes = static_cast<int64_t>(part.nbytes());
  if (!staging_.defined() || staging_.numel() < bytes) staging_ = transfer_->host_memory(bytes);
  return staging_.narrow(0, 0, bytes).view(part.scalar_type()).zero_();
}

ShardedPlacement::Gathering ShardedPlacement::gather(const FlatLayout::Bucket& bucket) {
  const Group& shards = *groups_.shards;
  const at::Device device = bucket.options.device();
  const auto options = bucket.options.device(shards.sends(device) ? device : at::kCPU);
  Gathering gathering = {.bucket = &bucket,
                         .whole = at::empty({bucket.count}, options),
                         .part = at::zeros({bucket.count / shards.size()}, options),
                         .sent = {}};
  const Tensor filled = staging(gathering.part);
  for (const FlatLayout::Place& place : bucket.places) {
    const Shared& shared = shared_[place.tensor];
    filled.narrow(0, shared.extent.at, shared.extent.count).copy_(shared.piece);
  }
  if (!filled.is_same(gathering.part)) gathering.part.copy_(filled);
  gathering.sent = groups_.shards->all_gather(gathering.whole, gathering.part);
  return gathering;
}

void ShardedPlacement::spread(Gathering& gathering) {
  const at::NoGradGuard no_grad;
  gathering.sent.wait();
  // Where processes leave, nothing has come, and pieces may lie in the leaves.
  if (groups_.shards->is_called_off()) return;
  for (const FlatLayout::Place& place : gathering.bucket->places) {
    const Tensor leaf = shared_[place.tensor].whole.leaf.detach();
    leaf.view(-1).copy_(gathering.whole.narrow(0, place.begin, leaf.numel()));
  }
}

void ShardedPlacement::open_values() {
  const std::vector<bool> all(layout_->buckets().size(), true);
  values_->open(std::exchange(is_moved_, std::nullopt).value_or(all));
}

void ShardedPlacement::publish() {
  open_values();
  complete();
  whole_->publish();
}

void ShardedPlacement::publish_ahead() {
  // What all blocks come from has to be whole, and what is saved behind a step that was left.
  if (whole_->is_on_host() || computes_together_) return publish();
  open_values();
}

void ShardedPlacement::adopt() {
  const at::NoGradGuard no_grad;
  if (transfer_ != nullptr) {
    for (Shared& shared : shared_) shared.piece.detach().copy_(shared.own_part());
  }
  whole_->adopt();
}

}  // namespace

int shard_ranks(const Training& config, const distributed::Ranks& ranks) {
  const int stage = config.shards.stage;
  const bool is_shared =
      stage == 1 || stage == 2 || (stage == 3 && !config.trainable_models.empty());
  return is_shared && !ranks.is_alone() ? group_size(config.shards.group, ranks) : 1;
}

int block_ranks(const Training& config, const distributed::Ranks& ranks) {
  const bool is_divided = config.shards.stage == 3 && !ranks.is_alone();
  return is_divided ? std::max(1, group_size(config.shards.group, ranks)) : 1;
}

bool makes_whole_groups(const Training& config, const distributed::Ranks& ranks) {
  const int size = group_size(config.shards.group, ranks);
  const bool is_shared = config.shards.stage > 0 && !ranks.is_alone();
  return size != 0 && (!is_shared || ranks.size % size == 0);
}

void check_shards(const Training& config, const distributed::Ranks& ranks,
                  report::Problems& problems) {
  const ShardSettings& shards = config.shards;
  if (!makes_whole_groups(config, ranks))
    problems.add("--zero_group: " + formats::quote_and_escape(shards.group) + " of " +
                     std::to_string(ranks.size) + " processes make up no groups of one size",
                 "use all, node, or a number that divides that of the processes");
  if (shard_ranks(config, ranks) > 1 && !optim::has_pieces(config.optimizer.kind))
    problems.add("--zero_stage " + std::to_string(shards.stage) +
                     ": this optimizer needs whole matrices, and moves no pieces of them",
                 "use --zero_stage 0, or --optimizer_type AdamW8bit", ErrorCode::kUnsupported);
}

std::unique_ptr<ParameterPlacement> share_parameters(std::unique_ptr<ParameterPlacement> whole,
                                                     model::LoadedModel& model,
                                                     const Selection& selection,
                                                     const Training& config, Group& group,
                                                     bool on_host) {
  distributed::require_same(
      group, {{"ranks of one --zero_group", std::to_string(shard_ranks(config, group.ranks()))}});
  std::set<std::string> denoisers;
  for (const auto& denoiser : running_denoisers(model, selection))
    denoisers.insert(denoiser.name());
  std::unique_ptr<memory::TransferDevice> own;
  if (on_host && model.transfer() == nullptr) own = memory::make_transfer_device(model.device());
  memory::TransferDevice* const transfer = own ? own.get() : model.transfer();
  const auto groups = distributed::ShardGroups::make(group, shard_ranks(config, group.ranks()));
  auto shared = std::make_unique<ShardedPlacement>(
      std::move(whole), config, group, groups, std::move(own), on_host ? transfer : nullptr,
      std::move(denoisers), name_blocks(model, selection));
  const bool divides = std::ranges::any_of(
      selection.weights, [&](const auto& trained) { return is_divided(model, trained); });
  if (!divides) return shared;
  return divide_parameters(std::move(shared), model, group, groups);
}

}  // namespace atelier::parameters
