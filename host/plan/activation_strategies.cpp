#include "host/plan/activation_strategies.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "host/report/text.h"

namespace atelier::plan {

using memory::ActivationBudget;
using memory::Strategy;

namespace {

constexpr int kBudgets = 20;  // parts of the activations that are tried
// Outputs of blocks that are on the device where the others wait on the host.
constexpr int64_t kThere = 3;

}  // namespace

bool orders_activations(const order::Training& config) {
  return config.activation_budget.has_value() &&
         config.activation_budget->kind != ActivationBudget::Kind::kAuto;
}

std::vector<ActivationBudget> possible_budgets(const order::Training& config) {
  using Kind = ActivationBudget::Kind;
  if (orders_activations(config)) return {*config.activation_budget};
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

namespace {

// What a run of a block keeps for its backward pass.
int64_t kept_bytes(const memory::BlockCosts& costs, const memory::ActivationPlan::Run& run) {
  if (run.is_whole) return costs.whole_bytes;
  int64_t bytes = 0;
  for (size_t op = 0; op < run.actions.size(); ++op)
    bytes += run.actions[op] == ops::Action::kKeep ? costs.operators[op].bytes : 0;
  return bytes;
}

}  // namespace

int64_t backward_bytes(const DryModel::TrainingPass& pass, const memory::ActivationPlan& plan,
                       double held, int64_t ranks, bool sends_inputs) {
  // What the runs before one keep, and their outputs.
  std::vector<int64_t> kept, outputs;
  int64_t all_kept = 0, all_outputs = 0, largest = 0;
  for (size_t i = 0; i < pass.runs.size(); ++i) {
    kept.push_back(all_kept);
    outputs.push_back(all_outputs);
    all_kept += kept_bytes(*pass.runs[i], plan.runs[i]);
    // What a whole run keeps has its output.
    all_outputs += plan.runs[i].is_whole ? 0 : pass.runs[i]->held_bytes;
    largest = std::max(largest, pass.runs[i]->held_bytes);
  }
  double most = 0, behind = 0;
  std::set<const Block*> done;
  for (size_t i = pass.runs.size(); i-- > 0;) {
    const memory::BlockCosts& costs = *pass.runs[i];
    const int64_t before = sends_inputs ? std::min(outputs[i], kThere * largest) : outputs[i];
    const auto rows = static_cast<double>(kept[i] + before + plan.moving_bytes +
                                          costs.working_bytes + 2 * costs.held_bytes);
    const auto own = static_cast<double>(pass.gradients[i]);
    const double shared = ranks > 1 ? rows / static_cast<double>(ranks) + own : rows;
    most = std::max(most, shared + held * behind);
    if (done.insert(pass.blocks[i]).second) behind += own;
  }
  return std::llround(most);
}

int64_t trying_bytes(const DryModel::TrainingPass& pass) {
  int64_t most = 0;
  for (size_t i = 0; i < pass.runs.size(); ++i)
    most = std::max({most, pass.runs[i]->working_bytes / 2, pass.gradients[i]});
  return most;
}

int64_t measuring_bytes(const DryModel::TrainingPass& pass) {
  return plan_of(pass, {.kind = ActivationBudget::Kind::kFraction, .fraction = 0.0}).peak_bytes +
         trying_bytes(pass);
}

void send_inputs(const DryModel::TrainingPass& pass, Strategy& strategy) {
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
  const std::string peak = report::bytes_text(plan.peak_bytes);
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
