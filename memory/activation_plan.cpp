#include "memory/activation_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace atelier::memory {
namespace {

using ops::Action;

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Dynamic programming over bytes in units. At place c stands the best that c units allow.
class Knapsack {
 public:
  Knapsack(std::span<const KeepChoice> choices, int64_t budget)
      : choices_(choices), unit_(unit_of(choices)), size_(budget / unit_ + 1) {
    best_.resize(static_cast<size_t>(size_));
    taken_.resize(choices.size());
  }

  KeepSolution solve() {
    for (size_t i = 0; i < choices_.size(); ++i) offer(i);
    KeepSolution solution;
    solution.kept.resize(choices_.size());
    solution.steps = steps_;
    int64_t place = best_place();
    solution.bytes = best_[static_cast<size_t>(place)].bytes;
    solution.picoseconds = best_[static_cast<size_t>(place)].picoseconds;
    for (size_t i = choices_.size(); i-- > 0;) {
      const int64_t count = taken_[i][static_cast<size_t>(place)];
      solution.kept[i] = count;
      place -= units(i, count);
    }
    return solution;
  }

 private:
  struct Best {
    int64_t picoseconds = 0, bytes = 0;
    bool is_worse_than(const Best& other) const {
      if (picoseconds != other.picoseconds) return picoseconds < other.picoseconds;
      return bytes > other.bytes;
    }
  };

  static int64_t unit_of(std::span<const KeepChoice> choices) {
    int64_t common = 0, total = 0, count = 0;
    for (const KeepChoice& choice : choices) {
      common = std::gcd(common, choice.bytes);
      total += choice.bytes * choice.count;
      count += choice.count;
    }
    // The table has at most total / unit + 1 places, and each is compared `count` times.
    const int64_t places = std::max<int64_t>(1, kMostPlanSteps / std::max<int64_t>(1, count) - 1);
    return std::max({common, divide_up(total, places), int64_t{1}});
  }

  int64_t units(size_t choice, int64_t count) const {
    return divide_up(count * choices_[choice].bytes, unit_);
  }

  void offer(size_t i) {
    const KeepChoice& choice = choices_[i];
    std::vector<int64_t> weights;
    for (int64_t k = 0; k <= choice.count; ++k) weights.push_back(units(i, k));
    taken_[i].assign(static_cast<size_t>(size_), 0);
    for (int64_t place = size_ - 1; place >= 0; --place) {
      Best best = best_[static_cast<size_t>(place)];
      int64_t count = 0;
      for (int64_t k = 1; k <= choice.count && weights[static_cast<size_t>(k)] <= place; ++k) {
        Best with = best_[static_cast<size_t>(place - weights[static_cast<size_t>(k)])];
        with.picoseconds += k * choice.picoseconds;
        with.bytes += k * choice.bytes;
        ++steps_;
        if (best.is_worse_than(with)) best = with, count = k;
      }
      best_[static_cast<size_t>(place)] = best;
      taken_[i][static_cast<size_t>(place)] = count;
    }
  }

  // The last place that holds more than every one before it: what is found in rounded bytes may
  // hold less than what fits into a smaller budget.
  int64_t best_place() const {
    int64_t result = 0;
    for (int64_t place = 1; place < size_; ++place) {
      if (best_[static_cast<size_t>(place)].bytes > best_[static_cast<size_t>(result)].bytes)
        result = place;
    }
    return result;
  }

  std::span<const KeepChoice> choices_;
  int64_t unit_, size_;
  std::vector<Best> best_;
  std::vector<std::vector<int64_t>> taken_;
  int64_t steps_ = 0;
};

}  // namespace

KeepSolution choose_kept(std::span<const KeepChoice> choices, int64_t budget) {
  KeepSolution all;
  for (const KeepChoice& choice : choices) {
    all.kept.push_back(choice.count);
    all.bytes += choice.bytes * choice.count;
    all.picoseconds += choice.picoseconds * choice.count;
  }
  if (all.bytes <= budget) return all;
  return Knapsack(choices, std::max<int64_t>(budget, 0)).solve();
}

namespace {

using Runs = std::span<const std::shared_ptr<const BlockCosts>>;

// Whether run `i` is recomputed in every plan that does not keep everything.
bool is_recomputed(Runs runs, size_t i) {
  return runs[i]->always_recomputed || i + 1 < runs.size();
}

int64_t operator_bytes(const BlockCosts& run) {
  int64_t bytes = 0;
  for (const OperatorCosts& op : run.operators) bytes += op.bytes;
  return bytes;
}

// Bytes that outputs of operators have in the runs that may be recomputed.
int64_t operator_bytes(Runs runs) {
  int64_t bytes = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (is_recomputed(runs, i)) bytes += operator_bytes(*runs[i]);
  }
  return bytes;
}

// What a forward pass holds whatever is kept: the outputs of blocks, and at the end of the pass one
// block as a whole, with the gradient that came to it.
int64_t least_bytes(Runs runs) {
  int64_t outputs = 0, working = 0;
  for (const auto& run : runs) {
    outputs += run->held_bytes;
    working = std::max(working, run->working_bytes + run->held_bytes);
  }
  return outputs + working;
}

// What it holds when everything that can be is kept from run `first` on.
int64_t whole_bytes(Runs runs, size_t first, int64_t spent) {
  int64_t bytes = spent, working = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const bool is_whole = i >= first && !runs[i]->always_recomputed;
    bytes += is_whole ? runs[i]->whole_bytes : runs[i]->held_bytes;
    if (i >= first && !is_whole) bytes += operator_bytes(*runs[i]);
    const int64_t before = is_whole ? runs[i]->whole_bytes : 0;
    working = std::max(working, runs[i]->working_bytes - before + runs[i]->held_bytes);
  }
  return bytes + working;
}

ActivationPlan keep_everything(Runs runs, size_t first, int64_t spent) {
  ActivationPlan plan;
  plan.kept_bytes = spent;
  plan.peak_bytes = whole_bytes(runs, first, spent);
  for (size_t i = 0; i < runs.size(); ++i) {
    ActivationPlan::Run& run = plan.runs.emplace_back();
    run.is_whole = !runs[i]->always_recomputed;
    if (run.is_whole || i < first) continue;
    run.actions.assign(runs[i]->operators.size(), Action::kKeep);
    plan.kept_bytes += operator_bytes(*runs[i]);
    plan.extra_seconds += runs[i]->seconds;
    for (const OperatorCosts& op : runs[i]->operators) plan.extra_seconds -= op.seconds;
    ++plan.num_recomputed;
  }
  return plan;
}

// Bytes for outputs of operators. Less than 0: nothing fits.
int64_t room_for_outputs(Runs runs, const ActivationBudget& budget, int64_t available) {
  using Kind = ActivationBudget::Kind;
  if (budget.kind == Kind::kFraction) {
    if (budget.fraction >= 1) return std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(budget.fraction * static_cast<double>(operator_bytes(runs)));
  }
  return (budget.kind == Kind::kBytes ? budget.bytes : available) - least_bytes(runs);
}

}  // namespace

ActivationPlan plan_activations(Runs runs, const ActivationBudget& budget, int64_t available,
                                size_t first, int64_t spent) {
  using Kind = ActivationBudget::Kind;
  if (budget.kind == Kind::kNone) return keep_everything(runs, first, spent);
  if (budget.kind != Kind::kFraction) {
    const int64_t limit = budget.kind == Kind::kBytes ? budget.bytes : available;
    if (whole_bytes(runs, first, spent) <= limit) return keep_everything(runs, first, spent);
  }

  // Runs of one kind and shape, early ones first.
  std::vector<std::pair<const BlockCosts*, std::vector<size_t>>> groups;
  for (size_t i = first; i < runs.size(); ++i) {
    if (!is_recomputed(runs, i)) continue;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& g) { return g.first == runs[i].get(); });
    if (group == groups.end()) group = groups.insert(group, {runs[i].get(), {}});
    group->second.push_back(i);
  }
  std::vector<KeepChoice> choices;
  for (const auto& [costs, members] : groups) {
    for (const OperatorCosts& op : costs->operators) {
      choices.push_back({op.bytes, std::max<int64_t>(1, std::llround(op.seconds * 1e12)),
                         static_cast<int64_t>(members.size())});
    }
  }
  const int64_t room = room_for_outputs(runs, budget, available);
  const KeepSolution solution = choose_kept(choices, room - spent);

  ActivationPlan plan;
  plan.runs.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    plan.runs[i].is_whole = !is_recomputed(runs, i);
    plan.num_recomputed += is_recomputed(runs, i);
  }
  plan.kept_bytes = spent + solution.bytes;
  plan.peak_bytes = least_bytes(runs) + plan.kept_bytes;
  plan.is_over_budget = room < spent;
  plan.extra_seconds = -1e-12 * static_cast<double>(solution.picoseconds);
  auto kept = solution.kept.begin();
  for (const auto& [costs, members] : groups) {
    plan.extra_seconds += costs->seconds * static_cast<double>(members.size());
    for (size_t op = 0; op < costs->operators.size(); ++op, ++kept) {
      for (size_t i = 0; i < members.size(); ++i) {
        const bool keeps = static_cast<int64_t>(members.size() - i) <= *kept;
        plan.runs[members[i]].actions.push_back(keeps ? Action::kKeep : Action::kRecompute);
      }
    }
  }
  return plan;
}

}  // namespace atelier::memory
