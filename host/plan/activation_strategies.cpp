#include "host/plan/activation_strategies.h"

#include <algorithm>
#include <string>

#include "host/report/problems.h"

namespace atelier::plan {

using memory::ActivationBudget;
using memory::Strategy;

namespace {

constexpr int kBudgets = 20;  // parts of the activations that are tried

}  // namespace

bool says_activations(const train::Config& config) {
  return config.activation_budget.has_value() &&
         config.activation_budget->kind != ActivationBudget::Kind::kAuto;
}

std::vector<ActivationBudget> possible_budgets(const train::Config& config) {
  using Kind = ActivationBudget::Kind;
  if (says_activations(config)) return {*config.activation_budget};
  std::vector<ActivationBudget> budgets;
  if (!config.use_gradient_checkpointing || config.activation_budget) {
    budgets.push_back({.kind = Kind::kNone});
    for (int part = kBudgets; part > 0; --part)
      budgets.push_back(
          {.kind = Kind::kFraction, .fraction = static_cast<double>(part) / kBudgets});
  }
  budgets.push_back({.kind = Kind::kFraction, .fraction = 0.0});
  return budgets;
}

bool is_part(const ActivationBudget& budget) {
  return budget.kind == ActivationBudget::Kind::kFraction && budget.fraction > 0;
}

memory::ActivationPlan plan_of(const DryModel::TrainingPass& pass, const ActivationBudget& budget,
                               const memory::OffloadLimits& offload) {
  return memory::plan_activations(pass.runs, budget, /*available=*/0, /*first=*/0, /*spent=*/0,
                                  offload);
}

int64_t measuring_bytes(const DryModel::TrainingPass& pass) {
  int64_t working = 0;
  for (const auto& run : pass.runs) working = std::max(working, run->working_bytes);
  return plan_of(pass, {.kind = ActivationBudget::Kind::kFraction, .fraction = 0.0}).peak_bytes +
         working / 2;
}

void send_inputs(const DryModel::TrainingPass& pass, Strategy& strategy) {
  constexpr int64_t kThere = 3;
  int64_t all = 0, largest = 0;
  for (const auto& run : pass.runs) {
    all += run->held_bytes;
    largest = std::max(largest, run->held_bytes);
  }
  const int64_t sent = std::max<int64_t>(0, all - kThere * largest);
  strategy.device_bytes -= sent;
  strategy.host_bytes += sent;
}

Strategy named_strategy(const memory::ActivationPlan& plan, const ActivationBudget& budget) {
  using Kind = ActivationBudget::Kind;
  Strategy strategy;
  const bool is_whole = plan.num_recomputed == 0;
  strategy.needs_all_blocks = is_whole;
  const std::string peak = report::format_bytes(static_cast<uint64_t>(plan.peak_bytes));
  if (is_whole) {
    strategy.name = "keep all activations";
    strategy.why = "nothing is computed again";
  } else if (budget.kind == Kind::kFraction && budget.fraction == 0) {
    strategy.name = "keep inputs of blocks";
    strategy.why = "everything else is computed again";
  } else {
    strategy.name = "keep activations of " + peak;
    strategy.why = std::to_string(plan.num_recomputed) + " blocks are computed again in part";
  }
  return strategy;
}

}  // namespace atelier::plan
