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

// Dynamic programming over bytes in units. At place c stands the best that c units allow. Equal
// outputs come as items of 1, 2, 4, … of them: every number of them is a sum of some.
class Knapsack {
 public:
  Knapsack(std::span<const KeepChoice> choices, int64_t budget, int64_t most_steps)
      : num_choices_(choices.size()) {
    for (size_t i = 0; i < choices.size(); ++i) {
      for (int64_t left = choices[i].count, count = 1; left > 0; left -= count, count *= 2) {
        count = std::min(count, left);
        items_.push_back({i, count, count * choices[i].bytes, count * choices[i].picoseconds});
      }
    }
    unit_ = unit_of(choices, most_steps);
    best_.resize(static_cast<size_t>(budget / unit_ + 1));
    taken_.resize(items_.size());
  }

  KeepSolution solve() {
    for (size_t i = 0; i < items_.size(); ++i) offer(i);
    KeepSolution solution;
    solution.kept.resize(num_choices_);
    solution.steps = static_cast<int64_t>(items_.size() * best_.size());
    size_t place = best_place();
    solution.bytes = best_[place].bytes;
    solution.picoseconds = best_[place].picoseconds;
    for (size_t i = items_.size(); i-- > 0;) {
      if (!taken_[i][place]) continue;
      solution.kept[items_[i].choice] += items_[i].count;
      place -= units(items_[i]);
    }
    return solution;
  }

 private:
  struct Item {
    size_t choice;
    int64_t count, bytes, picoseconds;
  };
  struct Best {
    int64_t picoseconds = 0, bytes = 0;
    bool is_worse_than(const Best& other) const {
      if (picoseconds != other.picoseconds) return picoseconds < other.picoseconds;
      return bytes > other.bytes;
    }
  };

  int64_t unit_of(std::span<const KeepChoice> choices, int64_t most_steps) const {
    int64_t common = 0, total = 0;
    for (const KeepChoice& choice : choices) {
      common = std::gcd(common, choice.bytes);
      total += choice.bytes * choice.count;
    }
    // The table has at most total / unit + 1 places, and each is compared with every item.
    const int64_t count = std::max<int64_t>(1, std::ssize(items_));
    const int64_t places = std::max<int64_t>(1, most_steps / count - 1);
    return std::max({common, divide_up(total, places), int64_t{1}});
  }

  size_t units(const Item& item) const { return static_cast<size_t>(divide_up(item.bytes, unit_)); }

  void offer(size_t i) {
    const Item& item = items_[i];
    const size_t weight = units(item);
    taken_[i].assign(best_.size(), false);
    for (size_t place = best_.size(); place-- > weight;) {
      Best with = best_[place - weight];
      with.picoseconds += item.picoseconds;
      with.bytes += item.bytes;
      if (!best_[place].is_worse_than(with)) continue;
      best_[place] = with;
      taken_[i][place] = true;
    }
  }

  // The last place that holds more than every one before it: what is found in rounded bytes may
  // hold less than what fits into a smaller budget.
  size_t best_place() const {
    size_t result = 0;
    for (size_t place = 1; place < best_.size(); ++place) {
      if (best_[place].bytes > best_[result].bytes) result = place;
    }
    return result;
  }

  size_t num_choices_;
  std::vector<Item> items_;
  int64_t unit_ = 1;
  std::vector<Best> best_;
  std::vector<std::vector<bool>> taken_;
};

}  // namespace

KeepSolution choose_kept(std::span<const KeepChoice> choices, int64_t budget, int64_t most_steps) {
  KeepSolution all;
  for (const KeepChoice& choice : choices) {
    all.kept.push_back(choice.count);
    all.bytes += choice.bytes * choice.count;
    all.picoseconds += choice.picoseconds * choice.count;
  }
  if (all.bytes <= budget) return all;
  return Knapsack(choices, std::max<int64_t>(budget, 0), most_steps).solve();
}

namespace {

using Runs = std::span<const std::shared_ptr<const BlockCosts>>;

// Whether run `i` is recomputed in every plan that does not keep everything.
bool is_recomputed(Runs runs, size_t i) {
  return runs[i]->always_recomputed || i + 1 < runs.size();
}

// The bytes of outputs that somebody reads.
int64_t operator_bytes(const BlockCosts& run) {
  int64_t bytes = 0;
  for (const OperatorCosts& op : run.operators) bytes += op.is_unread ? 0 : op.bytes;
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
    for (const OperatorCosts& op : runs[i]->operators)
      run.actions.push_back(op.is_unread ? Action::kSkip : Action::kKeep);
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

int64_t picoseconds_of(const OperatorCosts& op) {
  return std::max<int64_t>(1, std::llround(op.seconds * 1e12));
}

// Runs of one kind and shape that are planned alike.
struct RunGroup {
  const BlockCosts* costs;
  std::vector<size_t> members;  // places in the pass, early ones first
  size_t movable = 0;           // how many of these may offload: the first ones
  std::vector<bool> offloads;   // of each operator
  size_t moving = 0;            // runs that do so

  int64_t offloaded_bytes() const {  // of a run
    int64_t bytes = 0;
    for (size_t op = 0; op < offloads.size(); ++op)
      bytes += offloads[op] ? costs->operators[op].bytes : 0;
    return bytes;
  }
  // Says of each member whether it is moved.
  std::vector<bool> movers() const {
    std::vector<bool> result(members.size());
    for (size_t i = 0; i < moving; ++i) result[i * movable / moving] = true;
    return result;
  }
};

std::vector<RunGroup> groups_of(Runs runs, size_t first) {
  std::vector<RunGroup> groups;
  for (size_t i = first; i < runs.size(); ++i) {
    if (!is_recomputed(runs, i)) continue;
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const RunGroup& g) { return g.costs == runs[i].get(); });
    if (group == groups.end()) {
      group = groups.insert(group, RunGroup{runs[i].get(), {}, 0, {}, 0});
      group->offloads.resize(runs[i]->operators.size());
    }
    group->members.push_back(i);
    if (i + 2 < runs.size()) ++group->movable;
  }
  return groups;
}

// What is kept beside what is offloaded.
struct Solution {
  std::vector<RunGroup> groups;
  KeepSolution kept;
  int64_t picoseconds = 0;                        // that are saved in all
  int64_t moving_bytes = 0, offloaded_bytes = 0;  // see ActivationPlan
  // An order of solutions that no budget changes, so that a larger budget gives no plan that takes
  // less.
  bool is_better_than(const Solution& other) const {
    if (picoseconds != other.picoseconds) return picoseconds > other.picoseconds;
    if (offloaded_bytes != other.offloaded_bytes) return offloaded_bytes < other.offloaded_bytes;
    return kept.bytes + moving_bytes < other.kept.bytes + other.moving_bytes;
  }
};

// Looks for the best of all plans that fit into `room` bytes.
class OffloadSearch {
 public:
  OffloadSearch(std::vector<RunGroup> groups, int64_t room, const OffloadLimits& limits)
      : room_(room), limits_(limits) {
    best_ = solve(std::move(groups));
  }

  // Lets the kinds of runs offload, those with the most bytes first.
  Solution find() {
    if (limits_.host_bytes <= 0 || best_.groups.empty()) return best_;
    std::vector<size_t> order(best_.groups.size());
    std::iota(order.begin(), order.end(), 0);
    const auto bytes = [&](size_t g) {
      const RunGroup& group = best_.groups[g];
      return operator_bytes(*group.costs) * static_cast<int64_t>(group.movable);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return bytes(a) > bytes(b); });
    for (size_t g : order) try_group(g);
    return best_;
  }

 private:
  struct Set {
    std::vector<bool> offloads;
    size_t moving;
    int64_t bytes;  // with what other groups offload
    double bound;   // picoseconds
  };

  // The choices for the runs of all groups, without what is offloaded.
  std::vector<KeepChoice> choices(const std::vector<RunGroup>& groups) const {
    std::vector<KeepChoice> result;
    for (const RunGroup& group : groups) {
      for (size_t op = 0; op < group.offloads.size(); ++op) {
        const OperatorCosts& costs = group.costs->operators[op];
        if (costs.is_unread) continue;
        const size_t count = group.members.size() - (group.offloads[op] ? group.moving : 0);
        result.push_back({costs.bytes, picoseconds_of(costs), static_cast<int64_t>(count)});
      }
    }
    return result;
  }

  // What is offloaded, with nothing kept.
  static Solution offloaded(const std::vector<RunGroup>& groups) {
    Solution result;
    for (const RunGroup& group : groups) {
      const auto runs = static_cast<int64_t>(group.moving);
      if (runs == 0) continue;
      for (size_t op = 0; op < group.offloads.size(); ++op) {
        if (group.offloads[op])
          result.picoseconds += runs * picoseconds_of(group.costs->operators[op]);
      }
      const int64_t bytes = group.offloaded_bytes();
      result.offloaded_bytes += runs * bytes;
      // Two loads leave at once, or one comes while one that came is read.
      result.moving_bytes = std::max(result.moving_bytes, 2 * bytes);
    }
    return result;
  }

  Solution solve(std::vector<RunGroup> groups) {
    Solution result = offloaded(groups);
    const int64_t steps = std::max(kMostPlanSteps - steps_, kMostPlanSteps / 4);
    result.kept = choose_kept(choices(groups), room_ - result.moving_bytes, steps);
    steps_ += result.kept.steps;
    result.picoseconds += result.kept.picoseconds;
    result.groups = std::move(groups);
    return result;
  }

  // More than solve() finds, or the same: the last output is kept in part.
  double bound(const std::vector<RunGroup>& groups, const Solution& moved) const {
    std::vector<KeepChoice> all = choices(groups);
    std::sort(all.begin(), all.end(), [](const KeepChoice& a, const KeepChoice& b) {
      return static_cast<double>(a.picoseconds) * static_cast<double>(b.bytes) >
             static_cast<double>(b.picoseconds) * static_cast<double>(a.bytes);
    });
    double left = static_cast<double>(room_ - moved.moving_bytes);
    double result = static_cast<double>(moved.picoseconds);
    for (const KeepChoice& choice : all) {
      const double bytes = static_cast<double>(choice.bytes * choice.count);
      const double part = bytes <= left ? 1.0 : std::max(0.0, left / bytes);
      result += part * static_cast<double>(choice.picoseconds * choice.count);
      left -= bytes;
    }
    return result;
  }

  // The sets of operators that `group` could offload, the most promising first.
  std::vector<Set> sets(const RunGroup& group, std::vector<RunGroup> groups, size_t place) const {
    constexpr size_t kMostOperators = 12;  // of which sets are tried: the slowest ones
    std::vector<size_t> candidates;
    for (size_t op = 0; op < group.costs->operators.size(); ++op) {
      const OperatorCosts& costs = group.costs->operators[op];
      if (!costs.is_unread && costs.bytes > 0) candidates.push_back(op);
    }
    std::stable_sort(candidates.begin(), candidates.end(), [&](size_t a, size_t b) {
      return group.costs->operators[a].seconds > group.costs->operators[b].seconds;
    });
    candidates.resize(std::min(candidates.size(), kMostOperators));

    const int64_t host = limits_.host_bytes - offloaded(groups).offloaded_bytes;
    const double window = limits_.bytes_per_second * group.costs->seconds;
    std::vector<Set> result;
    for (uint32_t mask = 1; mask < uint32_t{1} << candidates.size(); ++mask) {
      RunGroup& trial = groups[place] = group;
      for (size_t i = 0; i < candidates.size(); ++i)
        trial.offloads[candidates[i]] = (mask >> i & 1) != 0;
      const int64_t bytes = trial.offloaded_bytes();
      trial.moving =
          std::min(group.movable, static_cast<size_t>(std::max<int64_t>(0, host / bytes)));
      if (trial.moving == 0 || static_cast<double>(bytes) > window || 2 * bytes > room_) continue;
      const Solution moved = offloaded(groups);
      result.push_back({trial.offloads, trial.moving, moved.offloaded_bytes, bound(groups, moved)});
    }
    std::stable_sort(result.begin(), result.end(),
                     [](const Set& a, const Set& b) { return a.bound > b.bound; });
    return result;
  }

  void try_group(size_t place) {
    const RunGroup before = best_.groups[place];
    if (before.movable == 0) return;
    std::vector<RunGroup> groups = best_.groups;
    for (const Set& set : sets(before, groups, place)) {
      if (set.bound < static_cast<double>(best_.picoseconds) || steps_ > kMostPlanSteps) return;
      if (set.bound == static_cast<double>(best_.picoseconds) && set.bytes > best_.offloaded_bytes)
        continue;
      groups[place].offloads = set.offloads;
      groups[place].moving = set.moving;
      Solution found = solve(groups);
      if (found.is_better_than(best_)) best_ = std::move(found);
    }
  }

  int64_t room_;
  OffloadLimits limits_;
  int64_t steps_ = 0;
  Solution best_;
};

// Says of every run what becomes of its outputs: those that are kept, in late runs.
void fill_actions(const Solution& solution, ActivationPlan& plan) {
  auto kept = solution.kept.kept.begin();
  for (const RunGroup& group : solution.groups) {
    const std::vector<bool> movers = group.movers();
    for (size_t op = 0; op < group.offloads.size(); ++op) {
      const OperatorCosts& costs = group.costs->operators[op];
      int64_t left = costs.is_unread ? 0 : *kept++;
      for (size_t i = group.members.size(); i-- > 0;) {
        Action action = costs.is_unread ? Action::kSkip : Action::kRecompute;
        if (group.offloads[op] && movers[i]) {
          action = Action::kOffload;
        } else if (left > 0) {
          action = Action::kKeep;
          --left;
        }
        plan.runs[group.members[i]].actions.push_back(action);
      }
      if (costs.is_unread)
        plan.extra_seconds -= costs.seconds * static_cast<double>(group.members.size());
    }
    plan.extra_seconds += group.costs->seconds * static_cast<double>(group.members.size());
  }
  plan.extra_seconds -= 1e-12 * static_cast<double>(solution.picoseconds);
}

}  // namespace

ActivationPlan plan_activations(Runs runs, const ActivationBudget& budget, int64_t available,
                                size_t first, int64_t spent, const OffloadLimits& offload) {
  using Kind = ActivationBudget::Kind;
  if (budget.kind == Kind::kNone) return keep_everything(runs, first, spent);
  if (budget.kind != Kind::kFraction) {
    const int64_t limit = budget.kind == Kind::kBytes ? budget.bytes : available;
    if (whole_bytes(runs, first, spent) <= limit) return keep_everything(runs, first, spent);
  }
  const int64_t room = room_for_outputs(runs, budget, available);
  const Solution solution = OffloadSearch(groups_of(runs, first), room - spent, offload).find();

  ActivationPlan plan;
  plan.runs.resize(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    plan.runs[i].is_whole = !is_recomputed(runs, i);
    plan.num_recomputed += is_recomputed(runs, i);
  }
  plan.kept_bytes = spent + solution.kept.bytes;
  plan.moving_bytes = solution.moving_bytes;
  plan.offloaded_bytes = solution.offloaded_bytes;
  plan.peak_bytes = least_bytes(runs) + plan.kept_bytes + plan.moving_bytes;
  plan.is_over_budget = room < spent;
  fill_actions(solution, plan);
  return plan;
}

}  // namespace atelier::memory
