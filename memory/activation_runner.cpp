#include "memory/activation_runner.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include "memory/live_bytes.h"
#include "memory/rank_agreement.h"

namespace atelier::memory {
namespace {

constexpr size_t kMostPasses = 256;       // that are remembered
constexpr int64_t kMostMeasuredRuns = 8;  // of one kind and shape
constexpr size_t kMostOperators = 1024;   // of a block

bool is_measured(const BlockCosts& costs) {
  return costs.runs > 0 && costs.working_bytes > 0;
}

using AllCosts = std::vector<std::shared_ptr<BlockCosts>>;

// Each of them once, in the order of their first runs.
AllCosts distinct(const AllCosts& runs) {
  AllCosts result;
  for (const auto& costs : runs) {
    if (std::find(result.begin(), result.end(), costs) == result.end()) result.push_back(costs);
  }
  return result;
}

}  // namespace

ActivationRunner::ActivationRunner(BlockRunner& inner, const ActivationBudget& budget,
                                   at::Device device, OnPlan on_plan,
                                   std::shared_ptr<Offloader> offloader,
                                   std::function<void(const Block&)> on_gradients)
    : inner_(inner),
      recompute_(inner, {}, {.offloader = offloader, .on_gradients = std::move(on_gradients)}),
      budget_(budget),
      device_(device),
      on_plan_(std::move(on_plan)),
      offloader_(std::move(offloader)) {
  if (device_.is_cpu()) LiveBytes::install();
}

void ActivationRunner::begin_pass() {
  const bool is_new = std::none_of(passes_.begin(), passes_.end(),
                                   [&](const Pass& pass) { return pass.runs == runs_; });
  if (is_new && !runs_.empty()) agree_on(distinct(runs_));
  const bool is_known = std::all_of(runs_.begin(), runs_.end(),
                                    [](const Costs& costs) { return is_measured(*costs); });
  if (!runs_.empty() && is_new && is_known) {
    passes_.push_front({runs_, {}});
    if (passes_.size() > kMostPasses) passes_.pop_back();
  }
  runs_.clear();
  spent_ = offloaded_ = 0;
  guide_ = nullptr;
  plan_ = nullptr;
}

bool ActivationRunner::can_tighten() const {
  if (keeps_nothing_) return false;
  if (budget_.kind == ActivationBudget::Kind::kNone || plan_ == nullptr) return true;
  const auto whole = std::ssize(plan_->runs) - plan_->num_recomputed;
  return plan_->kept_bytes + plan_->moving_bytes > 0 || whole > 1;
}

bool ActivationRunner::tighten() {
  constexpr double kPart = 0.9;  // of what the plan needs
  using Kind = ActivationBudget::Kind;
  if (!can_tighten()) return false;
  if (budget_.kind == Kind::kNone) {
    budget_ = {.kind = Kind::kFraction, .fraction = 1.0};
  } else if (plan_ == nullptr) {  // measuring takes memory, too
    budget_ = {.kind = Kind::kFraction};
    keeps_nothing_ = true;
  } else {
    budget_ = {.kind = Kind::kBytes,
               .bytes = static_cast<int64_t>(kPart * static_cast<double>(plan_->peak_bytes))};
  }
  set_budget(budget_);
  return true;
}

void ActivationRunner::set_budget(const ActivationBudget& budget) {
  budget_ = budget;
  for (Pass& pass : passes_) pass.plans.clear();
  runs_.clear();
  guide_ = nullptr;
  plan_ = nullptr;
}

ActivationRunner::Costs ActivationRunner::costs_of(const Block& block, const Tensors& inputs,
                                                   const Tensors& trained, bool always_recomputed) {
  std::string key(block.kind());
  if (always_recomputed) key += " always";
  for (const at::Tensor& t : inputs) {
    key += t.defined() ? c10::str(" ", t.scalar_type(), t.sizes(), t.requires_grad()) : " -";
  }
  int64_t count = 0;
  for (const at::Tensor& t : trained) count += t.numel();
  key += c10::str(" ", trained.size(), " ", count) + rows_of_ranks(inputs);
  Costs& costs = costs_[key];
  if (!costs) costs = std::make_shared<BlockCosts>();
  costs->always_recomputed = always_recomputed;
  return costs;
}

// Chooses the plan when run number runs_.size(), of these costs, is the first one or another than
// the guide had there.
void ActivationRunner::follow(const Costs& costs) {
  const size_t place = runs_.size();
  const auto begins_alike = [&](const Pass& pass) {
    return pass.runs.size() > place && pass.runs[place] == costs &&
           std::equal(runs_.begin(), runs_.end(), pass.runs.begin());
  };
  if (guide_ != nullptr && begins_alike(*guide_)) return;
  if (guide_ == nullptr && place > 0) return;  // a pass that is new from its first run on
  guide_ = nullptr;
  if (plan_ != nullptr) spent_ += plan_->moving_bytes;  // of runs before this one
  plan_ = nullptr;
  // Takes the longest of several: its plan leaves room for what the others hold.
  for (Pass& pass : passes_) {
    if (begins_alike(pass) && (guide_ == nullptr || pass.runs.size() > guide_->runs.size()))
      guide_ = &pass;
  }
  if (guide_ == nullptr) return;
  auto found = guide_->plans.find({place, spent_, offloaded_});
  if (found == guide_->plans.end()) {
    ActivationPlan plan = plan_from(place);  // it may throw, and leaves nothing behind then
    found =
        guide_->plans.emplace(decltype(found->first){place, spent_, offloaded_}, std::move(plan))
            .first;
    if (on_plan_) on_plan_(found->second);
  }
  plan_ = &found->second;
}

ActivationPlan ActivationRunner::plan_from(size_t place) const {
  const std::vector<std::shared_ptr<const BlockCosts>> runs(guide_->runs.begin(),
                                                            guide_->runs.end());
  const bool is_auto = budget_.kind == ActivationBudget::Kind::kAuto;
  const std::vector<double> least =
      least_of_ranks({is_auto ? static_cast<double>(available_bytes(device_)) : 0.0,
                      offloader_ ? static_cast<double>(offloader_->host_bytes() - offloaded_) : 0.0,
                      offloader_ ? offloader_->bytes_per_second() : 0.0});
  const OffloadLimits limits = {.host_bytes = static_cast<int64_t>(least[1]),
                                .bytes_per_second = least[2]};
  return plan_activations(runs, budget_, static_cast<int64_t>(least[0]), place, spent_, limits);
}

std::shared_ptr<void> ActivationRunner::hold(Block& block) {
  return inner_.hold(block);
}

Tensors ActivationRunner::run(Block& block, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) return inner_.run(block, inputs);
  if (ops::RecomputeScope::current() != nullptr) return recompute_.run(block, inputs);
  const Tensors trained = trained_tensors(block);
  const bool has_sinks = !sinking_weights(block).empty();
  if (!any_requires_grad(inputs) && !any_requires_grad(trained) && !has_sinks)
    return inner_.run(block, inputs);

  const std::shared_ptr<void> held = inner_.hold(block);
  const bool always_recomputed = held != nullptr || has_sinks;
  if (budget_.kind == ActivationBudget::Kind::kNone) {
    if (!always_recomputed) return inner_.run(block, inputs);
    return recompute_.run(block, inputs, ops::ActionPlan(kMostOperators, ops::Action::kKeep));
  }
  if (keeps_nothing_) return recompute_.run(block, inputs, ops::ActionPlan());
  const Costs costs = costs_of(block, inputs, trained, always_recomputed);
  follow(costs);
  const size_t place = runs_.size();
  runs_.push_back(costs);
  if (plan_ == nullptr) {
    const bool measures = !is_measured(*costs) || costs->runs < kMostMeasuredRuns;
    return recompute_.run(block, inputs, {}, measures ? costs : nullptr);
  }
  const ActivationPlan::Run& run = plan_->runs[place];
  if (run.is_whole) {
    spent_ += costs->whole_bytes - costs->held_bytes;
    return inner_.run(block, inputs);
  }
  for (size_t i = 0; i < run.actions.size(); ++i) {
    if (run.actions[i] == ops::Action::kKeep) spent_ += costs->operators[i].bytes;
    if (run.actions[i] == ops::Action::kOffload) offloaded_ += costs->operators[i].bytes;
  }
  return recompute_.run(block, inputs, run.actions);
}

}  // namespace atelier::memory
