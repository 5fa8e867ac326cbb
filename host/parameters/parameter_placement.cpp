#include "host/parameters/parameter_placement.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "host/distributed/handshake.h"
#include "host/model/components.h"

namespace atelier::parameters {

using at::Tensor;
using model::LoadedModel;
using order::Training;

namespace {

RankMode mode_of(const Training& config, const Layout& layout, const distributed::Group* group) {
  const int shards = group == nullptr ? 1 : shard_ranks(config, group->ranks());
  return {.ranks = group == nullptr ? 1 : group->size(),
          .zero_stage = shards > 1 ? config.shards.stage : 0,
          .on_host = layout.optimizes_on_host,
          .group = shards,
          .sequence = config.sequence_parallel};
}

// Lets a block run when its values have come, and its gradients be expected.
class StepRunner final : public BlockRunner {
 public:
  // values, gradients: null where there are none.
  StepRunner(BlockRunner& inner, ArrivingValues* values, HostGradients* gradients)
      : inner_(inner), values_(values), gradients_(gradients) {}

  Tensors run(Block& block, const Tensors& inputs) override {
    if (values_ != nullptr) values_->await(&block);
    if (gradients_ != nullptr && at::GradMode::is_enabled()) gradients_->expect(block);
    return inner_.run(block, inputs);
  }
  std::shared_ptr<void> hold(Block& block) override {
    if (values_ != nullptr) values_->await(&block);
    return inner_.hold(block);
  }

 private:
  BlockRunner& inner_;
  ArrivingValues* values_;
  HostGradients* gradients_;
};

}  // namespace

ParameterPlacement::ParameterPlacement(LoadedModel& model, const Selection& selection,
                                       const Training& config, const Layout& layout,
                                       distributed::Group* group)
    : model_(model),
      selection_(selection),
      blocks_(model, selection),
      group_(group),
      mode_(mode_of(config, layout, group)) {
  const bool is_wanted = mode_.on_host && (!model.device().is_cpu() || model.is_simulated());
  bool rest_on_host = false, divides = false, keeps_parts_on_host = false;
  for (const Selection::TrainedWeight& trained : selection.weights) {
    const bool is_part = is_divided(model, trained);
    divides |= is_part;
    rest_on_host |= !is_part && model.is_streamed(*trained.weight);
    keeps_parts_on_host |=
        is_part && model.residency(trained.component)->keeps_on_host(*trained.weight);
  }
  const bool has_wholes = has_wholes_on_host(mode_, is_wanted, rest_on_host);
  mode_.on_host = has_wholes || is_wanted || keeps_parts_on_host;
  const bool has_shards = has_shards_on_host(mode_, has_wholes);
  if ((has_wholes || has_shards) && model.transfer() == nullptr)
    own_transfer_ = memory::make_transfer_device(model.device());
  memory::TransferDevice* const transfer = own_transfer_ ? own_transfer_.get() : model.transfer();
  if (has_wholes)
    host_ = std::make_unique<HostParameters>(model, *transfer, config.offload.least_bytes);
  if (has_shards)
    shard_memory_ = {transfer, config.optimizer.master_weights == optim::MasterWeights::kFp32};
  if (!is_shared()) return;
  const auto shards = static_cast<int>(mode_.group);
  distributed::require_same(*group, {{"ranks of one --zero_group", std::to_string(shards)}});
  shards_ = distributed::ShardGroups::make(*group, shards);
  if (divides)
    divided_ =
        std::make_unique<DividedWeights>(model, shards_.shards->rank(), shards, is_on_host());
}

ParameterPlacement::~ParameterPlacement() = default;

optim::Parameter ParameterPlacement::add(const Selection::TrainedWeight& trained) {
  Weight& weight = *trained.weight;
  const std::string name = trained.component + "." + trained.path;
  const Block* const block = blocks_.tensors.at(name).block;
  if (is_divided(model_, trained)) return divided_->add(trained, *block);
  Tensor value;
  if (!model_.is_streamed(weight)) {
    value = weight.draw();
  } else {
    value = model_.residency(trained.component)->host_value(weight);
    if (const auto parameter = host_->add(name, trained, value, *block)) return *parameter;
  }
  // Values get storage of their own: those of the file stay what they are for a second reading.
  weight.set(value.to(model_.device(), value.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  weight.state().set_trainable(true);
  return add(name, weight.state().leaf());
}

optim::Parameter ParameterPlacement::add(std::string name, const Tensor& leaf) {
  if (host_) return host_->add_copy(std::move(name), leaf);
  return {std::move(name), leaf};
}

void ParameterPlacement::share_out(std::vector<optim::Group> wholes) {
  wholes_ = moved_ = std::move(wholes);
  std::vector<optim::Parameter*> exchanged;
  for (optim::Group& group : moved_) {
    for (optim::Parameter& parameter : group.parameters) {
      if (divided_ && divided_->has(parameter.name)) {
        divided_->cut(parameter);
      } else {
        exchanged.push_back(&parameter);
      }
    }
  }
  if (group_ != nullptr) exchange(exchanged);
}

// Makes the plan of `tensors`, which are whole on each rank, and of those that are divided, and
// what carries it out.
void ParameterPlacement::exchange(const std::vector<optim::Parameter*>& tensors) {
  std::vector<Tensor> leaves;
  std::vector<std::string> names, of_divided;
  for (const optim::Parameter* parameter : tensors) {
    leaves.push_back(parameter->leaf);
    names.push_back(parameter->name);
  }
  std::vector<distributed::FlatLayout::Cut> cuts;
  if (divided_) {
    cuts = divided_->cuts();
    of_divided = divided_->names();
  }
  plan_.emplace(mode_, host_ != nullptr,
                ExchangedTensors(distributed::FlatLayout(leaves, mode_.parts()), known(names)),
                ExchangedTensors(distributed::FlatLayout(cuts), known(of_divided)), blocks_.blocks);
  sums_.emplace(*group_, shards_, *plan_, std::move(leaves),
                GradientSums::Options{.on_host = is_on_host()});
  if (divided_) divided_->send_gradients(*sums_);
  if (is_shared()) shared_.emplace(shards_, *plan_, tensors, shard_memory_);
}

std::vector<ExchangedTensor> ParameterPlacement::known(
    const std::vector<std::string>& names) const {
  std::vector<ExchangedTensor> known;
  for (const std::string& name : names) known.push_back(blocks_.tensors.at(name));
  return known;
}

std::unique_ptr<memory::HostScope> ParameterPlacement::allocate_beside() const {
  return is_on_host() ? std::make_unique<memory::HostScope>() : nullptr;
}

std::string ParameterPlacement::note() const {
  const std::string whole = host_ ? host_->note() : std::string();
  if (!is_shared()) return whole;
  std::string note =
      mode_.zero_stage == 1 ? "optimizer state is" : "optimizer state and gradients are";
  note += " shared out among " + std::to_string(mode_.group) + " processes";
  if (mode_.replicas() > 1) note += ", in " + std::to_string(mode_.replicas()) + " groups of them";
  if (!whole.empty()) note += "; " + whole;
  return divided_ ? divided_->note() + "; of the rest, " + note : note;
}

optim::Sum ParameterPlacement::sum() const {
  if (!is_shared()) return {};
  return [this](Tensor& value) { shards_.add_up(*group_, value); };
}

ShardOwner ParameterPlacement::owner() const {
  if (!is_shared()) return {};
  return {.index = shards_.shards->rank(),
          .count = shards_.shards->size(),
          .is_first_copy = !shards_.replicas || shards_.replicas->is_first(),
          .rank = group_->rank(),
          .num_ranks = group_->size()};
}

BlockRunner& ParameterPlacement::runner(BlockRunner& inner) {
  if (!shared_ && !host_) return inner;
  runner_ = std::make_unique<StepRunner>(inner, shared_ ? &shared_->values() : nullptr,
                                         host_ ? &host_->gradients() : nullptr);
  return *runner_;
}

void ParameterPlacement::require(std::initializer_list<State> states, const char* call) const {
  if (std::ranges::find(states, state_) != states.end()) return;
  static constexpr const char* kNames[] = {"kWhole", "kComing",   "kPasses",
                                           "kSent",  "kGathered", "kMoving"};
  throw Error(ErrorCode::kInternal, std::string(call) + "() of trained parameters is called in " +
                                        kNames[static_cast<size_t>(state_)]);
}

void ParameterPlacement::begin_step(const std::string& kind, int64_t passes) {
  require({State::kWhole, State::kComing}, "begin_step");
  state_ = State::kPasses;
  if (sums_) sums_->open(kind, passes);
}

void ParameterPlacement::begin_pass() {
  require({State::kPasses}, "begin_pass");
  if (shared_) shared_->values().await(/*block=*/nullptr);
  if (host_) host_->gradients().begin_pass();
}

void ParameterPlacement::end_block(const Block& block) {
  if (divided_) sums_->send(block);
}

void ParameterPlacement::backward(const Tensor& loss, const Tensor& total, bool is_last,
                                  const std::optional<HostGradients::Move>& move) {
  require({State::kPasses}, "backward");
  complete();  // also where blocks did not run
  const auto pass = [&] {
    if (host_) return host_->backward(loss, total, sums_ ? std::nullopt : move);
    loss.backward();
  };
  if (!sums_) return pass();
  sums_->pass(is_last, pass);
}

void ParameterPlacement::end_passes() {
  require({State::kPasses}, "end_passes");
  complete();  // also where no pass was made
  if (sums_) {
    const auto beside = allocate_beside();
    sums_->send_rest();
  }
  state_ = State::kSent;
}

Tensor ParameterPlacement::gather_status(const Tensor& loss, const std::vector<double>& numbers) {
  require({State::kSent, State::kWhole}, "gather_status");
  if (state_ == State::kSent) state_ = State::kGathered;
  return sums_->gather_status(loss, numbers);
}

optim::GradientNorm ParameterPlacement::take_gradients(Tensor& loss, double max_norm) {
  require({sums_ ? State::kGathered : State::kSent}, "take_gradients");
  const at::NoGradGuard no_grad;
  const auto beside = allocate_beside();
  if (sums_) loss = sums_->finish().to(loss.device());
  if (shared_) shared_->take_gradients(*sums_);
  if (divided_) divided_->take_gradients(*sums_);
  const optim::GradientNorm norm = optim::measure_gradients(
      moved_, loss, max_norm, host_ ? host_->gradients().norms() : NamedTensors(), sum());
  state_ = State::kMoving;
  return norm;
}

bool ParameterPlacement::end_step() {
  require({State::kMoving}, "end_step");
  const bool has_moved = host_ && host_->gradients().has_moved();
  clear_gradients();
  publish_ahead();
  return has_moved;
}

bool ParameterPlacement::give_up() {
  is_spoilt_ = is_spoilt_ || state_ == State::kMoving;
  complete();  // which the others come to, too, before anything else is exchanged
  if (host_) host_->gradients().give_up();
  if (sums_) {
    const auto beside = allocate_beside();
    sums_->give_up();
  }
  is_spoilt_ = is_spoilt_ || (host_ && host_->gradients().has_moved());
  clear_gradients();
  state_ = State::kWhole;
  return is_spoilt_;
}

void ParameterPlacement::clear_gradients() {
  if (host_) host_->clear_gradients();
  for (const auto* groups : {&wholes_, &moved_}) {
    for (const optim::Group& group : *groups) {
      for (const optim::Parameter& parameter : group.parameters)
        Tensor(parameter.leaf).mutable_grad() = Tensor();
    }
  }
  if (sums_) sums_->clear();
}

void ParameterPlacement::publish() {
  require({State::kWhole, State::kComing, State::kMoving}, "publish");
  if (shared_) {
    shared_->send_values();
    shared_->values().complete();
  }
  if (host_) host_->publish();
  if (divided_) divided_->publish();
  state_ = State::kWhole;
}

void ParameterPlacement::publish_ahead() {
  if (!shared_ || !plan_->brings_ahead()) return publish();
  require({State::kWhole, State::kComing, State::kMoving}, "publish_ahead");
  shared_->send_values();
  state_ = State::kComing;
}

void ParameterPlacement::complete() {
  if (shared_) shared_->values().complete();
  if (state_ == State::kComing) state_ = State::kWhole;
}

void ParameterPlacement::adopt() {
  require({State::kWhole}, "adopt");
  if (shared_) shared_->adopt();
  if (host_) host_->publish();
}

ParameterPlacement::Bytes ParameterPlacement::gradient_bytes() const {
  Bytes bytes;
  int64_t& of_wholes = host_ ? bytes.host : bytes.device;
  int64_t& of_parts = is_on_host() ? bytes.host : bytes.device;
  for (const optim::Group& group : wholes_) {
    for (const optim::Parameter& parameter : group.parameters) {
      const Tensor& gradient = parameter.leaf.grad();
      of_wholes += gradient.defined() ? static_cast<int64_t>(gradient.nbytes()) : 0;
    }
  }
  if (host_) bytes.host += host_->gradients().buffer_bytes();
  if (is_shared()) {
    of_parts += sums_->sum_bytes();
    of_wholes += sums_->bytes_under_way();
  }
  return bytes;
}

}  // namespace atelier::parameters
