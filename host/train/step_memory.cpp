#include "host/train/step_memory.h"

#include <algorithm>
#include <tuple>

#include <ATen/ATen.h>

#include "atelier/host/weight_state.h"

#include "host/distributed/group.h"
#include "host/model/components.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::train {

namespace {

using order::Training;
using parameters::TrainedTensors;

std::string describe(const memory::ActivationPlan& plan) {
  const std::string peak = "activations of blocks: at most " + report::bytes_text(plan.peak_bytes);
  if (plan.num_recomputed == 0) return peak + ", nothing is computed again";
  return peak + ", " + std::to_string(plan.num_recomputed) + " of " +
         std::to_string(plan.runs.size()) + " blocks are computed again but for " +
         report::bytes_text(plan.kept_bytes) + " that are kept, " +
         (plan.offloaded_bytes > 0
              ? report::bytes_text(plan.offloaded_bytes) + " wait on the host, "
              : "") +
         report::print("about %.3g s longer each time", plan.extra_seconds);
}

std::string describe(const memory::ActivationBudget& budget) {
  if (budget.kind == memory::ActivationBudget::Kind::kBytes)
    return "activations of blocks within " + report::bytes_text(budget.bytes);
  return budget.fraction > 0 ? "only products and attention kept" : "blocks computed again";
}

// Whether what `a` keeps is less than what `b` does. A run that does not fit comes from no limit to
// a part of everything, and from there to bytes.
bool is_tighter(const memory::ActivationBudget& a, const memory::ActivationBudget& b) {
  using Kind = memory::ActivationBudget::Kind;
  const auto rank_of = [](const memory::ActivationBudget& budget) {
    switch (budget.kind) {
      case Kind::kNone:
        return 0;
      case Kind::kAuto:
        return 1;
      case Kind::kFraction:
        return budget.fraction > 0 ? 2 : 4;
      case Kind::kBytes:
        return 3;
    }
    return 0;
  };
  return std::tuple(rank_of(a), -a.fraction, -a.bytes) >
         std::tuple(rank_of(b), -b.fraction, -b.bytes);
}

}  // namespace

StepMemory::StepMemory(model::LoadedModel& model, const Training& config,
                       const parameters::Layout& layout, TrainedTensors& trained,
                       progress::Progress& progress, run::MemoryTimeline* timeline)
    : model_(model), config_(config), trained_(trained), progress_(progress) {
  BlockRunner* blocks = &model.runner();
  if (timeline != nullptr) blocks = &sampling_.emplace(*blocks, *timeline);
  runner_ = &trained.placement().runner(keeping_runner(*blocks, layout));
}

// Blocks whose weights come and go are computed again: the weights are needed twice, and not
// between.
BlockRunner& StepMemory::keeping_runner(BlockRunner& inner, const parameters::Layout& layout) {
  offloader_ = make_offloader();
  std::vector<std::string> run = config_.trained_names();
  for (const std::string& component : parameters::running_components(model_, trained_.selection()))
    run.push_back(component);
  const bool streams = std::any_of(run.begin(), run.end(), [&](const std::string& name) {
    return model_.is_streamed(model::component_of(name));
  });
  const auto on_gradients = [this](const Block& block) { trained_.placement().end_block(block); };
  if (!layout.activation_budget && (layout.use_gradient_checkpointing || streams))
    return recompute_.emplace(inner, memory::RecomputeRunner::Planner(),
                              memory::RecomputeOptions{.offloader = offloader_,
                                                       .offloads_inputs = offloader_ != nullptr,
                                                       .on_gradients = on_gradients});
  return activations_.emplace(
      inner, layout.activation_budget.value_or(memory::ActivationBudget()), model_.device(),
      [this](const memory::ActivationPlan& plan) { note_plan(plan); }, offloader_, on_gradients);
}

// Null where activations stay.
std::shared_ptr<memory::Offloader> StepMemory::make_offloader() {
  if (!config_.offloads_activations) return nullptr;
  memory::TransferDevice* transfer = model_.transfer();
  if (transfer == nullptr)
    transfer = (transfer_ = memory::make_transfer_device(model_.device())).get();
  return std::make_shared<memory::Offloader>(*transfer, memory::available_bytes(at::kCPU));
}

// One line for the first plan, and for one that needs more than all before.
void StepMemory::note_plan(const memory::ActivationPlan& plan) {
  if (plan.peak_bytes <= told_bytes_) return;
  told_bytes_ = plan.peak_bytes;
  if (plan.is_over_budget) {
    progress_.warn(describe(plan) + "; the budget is less than that");
  } else {
    progress_.note(describe(plan));
  }
}

void StepMemory::begin_pass() {
  if (activations_) activations_->begin_pass();
  trained_.placement().begin_pass();
}

void StepMemory::keep_less(const std::string& step, const Error& failure) {
  activations_->tighten();
  told_bytes_ = -1;
  progress_.warn(step + ": " + failure.message() + "; it is made again with " +
                 describe(activations_->budget()));
}

void StepMemory::agree(distributed::Group& group) {
  const memory::ActivationBudget mine =
      activations_ ? activations_->budget() : memory::ActivationBudget();
  const at::Tensor part =
      at::tensor({static_cast<double>(mine.kind), mine.fraction, static_cast<double>(mine.bytes)},
                 at::kDouble);
  const at::Tensor parts = at::empty({group.size(), part.numel()}, at::kDouble);
  group.all_gather(parts, part).wait();
  const auto told = parts.accessor<double, 2>();
  memory::ActivationBudget least = mine;
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    const memory::ActivationBudget budget = {
        .kind = static_cast<memory::ActivationBudget::Kind>(told[rank][0]),
        .fraction = told[rank][1],
        .bytes = static_cast<int64_t>(told[rank][2])};
    if (is_tighter(budget, least)) least = budget;
  }
  if (!activations_ || !is_tighter(least, mine)) return;
  activations_->set_budget(least);
  progress_.note("another rank has less memory: " + describe(least));
}

model::Holder StepMemory::activation_holder(const memory::DeviceBytes& device) const {
  const int64_t taken = device.when_refused > 0 ? device.when_refused : device.peak;
  model::Holder holder = {"activations and what else the step makes",
                          std::max<int64_t>(0, taken - device.live),
                          offloader_ ? offloader_->stats().host_bytes : 0};
  if (activations_ && activations_->planned_bytes() > 0)
    holder.detail = report::bytes_text(activations_->planned_bytes()) + " are planned for blocks";
  return holder;
}

void StepMemory::report(const optim::Optimizer& optimizer) {
  const memory::DeviceBytes device =
      memory::DeviceMeter(model_.device(), model_.transfer()).bytes();
  int64_t layers = 0, small = 0;
  for (const auto& layer : trained_.selection().layers) {
    const ops::Adapter& factors = layer.linear->adapters.back();
    layers += static_cast<int64_t>(factors.a.nbytes() + factors.b.nbytes());
  }
  for (const auto& trained : trained_.selection().weights) {
    const at::Tensor& leaf = trained.weight->state().leaf();
    if (leaf.defined() && model_.is_streamed(*trained.weight))
      small += static_cast<int64_t>(leaf.nbytes());
  }
  std::vector<model::Holder> holders = model::weight_holders(model_);
  holders.push_back({"LoRA layers", layers});
  holders.push_back({"small trained weights beside their blocks", small});
  const int64_t state = optimizer.state_bytes();
  const bool is_on_host = trained_.placement().is_on_host();
  holders.push_back({"optimizer", is_on_host ? 0 : state, is_on_host ? state : 0});
  const auto [on_device, on_host] = trained_.placement().gradient_bytes();
  holders.push_back({"gradients", on_device, on_host});
  holders.push_back(activation_holder(device));
  for (const std::string& line : model::holder_lines(holders, device)) progress_.warn(line);
}

Error StepMemory::does_not_fit(const Error& failure) const {
  std::vector<std::string> flags;
  if (config_.order.batch_size > 1)
    flags.emplace_back("--batch_size 1 with more --gradient_accumulation_steps");
  const auto for_weights = model::flags_for_weights(model_);
  const bool trains_whole = config_.lora.base_models.empty();  // that is not stored in 8 bits
  std::copy_if(
      for_weights.begin(), for_weights.end(), std::back_inserter(flags),
      [&](const std::string& flag) { return !trains_whole || !flag.starts_with("--storage "); });
  if (!trained_.placement().is_on_host() && trains_whole) flags.emplace_back("--optimize_on_cpu");
  flags.emplace_back("a smaller --max_pixels");
  return {ErrorCode::kOutOfMemory, failure.message(), model::hint_of(flags)};
}

}  // namespace atelier::train
