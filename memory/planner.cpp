#include "memory/planner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>

#include "atelier/error.h"

namespace atelier::memory {
namespace {

constexpr int64_t kMostPrefetch = 3;
constexpr int kPasses = 3;  // until the end of a pass no longer depends on how the first one began

// Times are whole picoseconds, so that equal ones compare as equal. What takes longer than all
// others takes this.
constexpr int64_t kForever = INT64_MAX / 2;

int64_t whole(double picoseconds) {
  return picoseconds >= static_cast<double>(kForever) ? kForever : std::llround(picoseconds);
}

int64_t picoseconds(double seconds) {
  return whole(seconds * 1e12);
}

int64_t plus(int64_t time, int64_t more) {
  return std::min(kForever, time + more);
}

double seconds_of(int64_t picoseconds) {
  return static_cast<double>(picoseconds) * 1e-12;
}

struct TimedStep {
  size_t block;
  int64_t time;
};

int64_t copy_time(int64_t bytes, double bytes_per_second) {
  return picoseconds(static_cast<double>(bytes) / bytes_per_second);
}

// Copies run one after another, each as soon as a slot is free. A block that is still in the last
// slot does not come again.
int64_t streamed_time(const std::vector<TimedStep>& order, const std::vector<int64_t>& copies,
                      int64_t slots) {
  std::vector<int64_t> ends;  // of computing, for each arrival
  int64_t copied = 0, computed = 0, before = 0;
  constexpr size_t kNone = SIZE_MAX;
  size_t last = kNone;
  for (int pass = 0; pass < kPasses; ++pass) {
    before = computed;
    for (const TimedStep& step : order) {
      if (copies[step.block] > 0 && step.block != last) {
        const auto arrival = static_cast<int64_t>(ends.size());
        const int64_t free = arrival < slots ? 0 : ends[static_cast<size_t>(arrival - slots)];
        copied = plus(std::max(copied, free), copies[step.block]);
        computed = plus(std::max(computed, copied), step.time);
        ends.push_back(computed);
        last = step.block;
      } else {
        computed = plus(computed, step.time);
        if (copies[step.block] > 0) ends.back() = computed;
      }
    }
  }
  return computed - before;
}

// What can be chosen for one component, and what that takes.
struct Choice {
  ComponentChoice what;
  size_t storage = 0;
  std::vector<int64_t> copies = {};  // picoseconds of each block; 0: it is there
  int64_t slots = 0;
  int64_t once_time = 0;  // of copies that are made once in a run
  int64_t num_streamed = 0;
};

double copy_rate(Place place, const DeviceProfile& profile) {
  if (place == Place::kHost) return profile.copy_bytes_per_second;
  return std::min(profile.copy_bytes_per_second, profile.disk_bytes_per_second);
}

Choice make_choice(const PlannedComponent& component, size_t storage, int64_t resident,
                   Place others, int64_t prefetch, const DeviceProfile& profile) {
  const StoredComponent& stored = component.storages[storage];
  const auto count = static_cast<int64_t>(stored.blocks.size());
  Choice choice;
  choice.storage = storage;
  choice.what = {component.name, stored.storage, count, resident, others, prefetch, 0, 0};
  choice.what.device_bytes = stored.outside;
  choice.copies.assign(stored.blocks.size(), 0);
  const ResidencyPlan plan = spread_residents(count, resident, others, prefetch);
  int64_t largest = 0;
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const int64_t once = stored.once.empty() || resident == count ? 0 : stored.once[i];
    if (plan.blocks[i] == Place::kDevice) {
      choice.what.device_bytes += stored.blocks[i] - once;
      choice.what.host_bytes += once;
      choice.once_time += copy_time(once, profile.copy_bytes_per_second);
      continue;
    }
    const int64_t streamed = stored.blocks[i] - once;
    largest = std::max(largest, streamed);
    ++choice.num_streamed;
    choice.copies[i] = std::max<int64_t>(1, copy_time(streamed, copy_rate(others, profile)));
    choice.once_time += copy_time(once, copy_rate(others, profile));
    if (others == Place::kHost) choice.what.host_bytes += stored.blocks[i];
    if (!stored.kept.empty()) choice.what.device_bytes += stored.kept[i];
  }
  choice.slots = std::min(prefetch + 1, choice.num_streamed);
  choice.what.device_bytes += choice.slots * largest;
  return choice;
}

std::vector<Choice> choices_of(const PlannedComponent& component, const DeviceProfile& profile) {
  std::vector<Choice> choices;
  for (size_t storage = 0; storage < component.storages.size(); ++storage) {
    const auto count = static_cast<int64_t>(component.storages[storage].blocks.size());
    const bool may_stream = component.may_stream && count > 0;
    const int64_t wanted = std::min(component.resident.value_or(count), count);
    if (!may_stream || !component.resident || wanted == count)
      choices.push_back(make_choice(component, storage, count,
                                    component.others.value_or(Place::kHost),
                                    component.prefetch.value_or(2), profile));
    if (!may_stream) continue;
    for (int64_t resident = 0; resident < count; ++resident) {
      if (component.resident && resident != wanted) continue;
      for (const Place place : {Place::kHost, Place::kDisk}) {
        if (component.others && *component.others != place) continue;
        for (int64_t prefetch = 1; prefetch <= kMostPrefetch; ++prefetch) {
          if (component.prefetch && prefetch != 1) break;
          choices.push_back(make_choice(component, storage, resident, place,
                                        component.prefetch.value_or(prefetch), profile));
        }
      }
    }
  }
  return choices;
}

// Components that are on the device together, in some phase, and the phases that they are in.
struct Group {
  std::vector<size_t> components, phases;
};

// What is best is the least of these, from left to right.
using Score = std::tuple<int64_t, int64_t, int64_t, int64_t>;

class Search {
 public:
  Search(const PlannedRun& run, const PlanLimits& limits, const DeviceProfile& profile,
         bool wants_smallest)
      : run_(run), limits_(limits), profile_(profile), wants_smallest_(wants_smallest) {
    for (const PlannedComponent& component : run_.components)
      choices_.push_back(choices_of(component, profile_));
    for (const PlannedPhase& phase : run_.phases) {
      std::vector<size_t> members;
      for (const std::string& name : phase.components) members.push_back(component_index(name));
      members_.push_back(std::move(members));
    }
    times_.resize(run_.phases.size());
    for (size_t phase = 0; phase < run_.phases.size(); ++phase) measure(phase);
  }

  std::optional<MemoryPlan> solve() {
    MemoryPlan plan;
    plan.components.resize(run_.components.size());
    plan.phases.resize(run_.phases.size());
    plan.device_bytes = profile_.reserve_bytes;
    int64_t total = 0;
    for (const Group& group : groups()) {
      best_.reset();
      picked_.assign(run_.components.size(), 0);
      visit(group, 0);
      if (!best_) return std::nullopt;
      for (const size_t component : group.components)
        plan.components[component] = choices_[component][best_->picked[component]].what;
      for (size_t i = 0; i < group.phases.size(); ++i)
        plan.phases[group.phases[i]] = describe(group.phases[i], best_->picked, best_->manners[i]);
      total = plus(total, best_->time);
    }
    for (const PhaseChoice& phase : plan.phases) {
      plan.device_bytes = std::max(plan.device_bytes, phase.device_bytes);
      plan.host_bytes = std::max(plan.host_bytes, phase.host_bytes);
    }
    plan.seconds = seconds_of(total);
    return plan;
  }

 private:
  // Of a phase: for each manner and component the time of a pass with each of its choices.
  struct Times {
    std::vector<std::vector<std::vector<int64_t>>> by_manner;
  };
  struct Best {
    Score score;
    std::vector<size_t> picked, manners;
    int64_t time = 0;
  };
  struct Taken {
    int64_t device = 0, host = 0;
  };

  size_t component_index(const std::string& name) const {
    for (size_t i = 0; i < run_.components.size(); ++i) {
      if (run_.components[i].name == name) return i;
    }
    throw Error(ErrorCode::kInternal, "planner: no component '" + name + "'");
  }

  void measure(size_t phase) {
    for (const Manner& manner : run_.phases[phase].manners) {
      auto& of_manner = times_[phase].by_manner.emplace_back();
      for (const size_t component : members_[phase]) {
        std::vector<int64_t>& times = of_manner.emplace_back();
        const std::vector<TimedStep> order = order_of(manner, run_.components[component].name);
        for (const Choice& choice : choices_[component])
          times.push_back(
              order.empty() ? 0
                            : repeated(streamed_time(order, choice.copies, choice.slots), manner));
      }
    }
  }

  static int64_t repeated(int64_t time, const Manner& manner) {
    return whole(static_cast<double>(time) * manner.repeats);
  }

  static std::vector<TimedStep> order_of(const Manner& manner, const std::string& component) {
    std::vector<TimedStep> order;
    const auto forward = manner.forward.find(component);
    if (forward == manner.forward.end()) return order;
    for (size_t i = 0; i < forward->second.size(); ++i)
      order.push_back({i, picoseconds(forward->second[i])});
    const auto backward = manner.backward.find(component);
    if (backward == manner.backward.end()) return order;
    for (size_t i = backward->second.size(); i-- > 0;)
      order.push_back({i, picoseconds(backward->second[i])});
    return order;
  }

  std::vector<Group> groups() const {
    std::vector<size_t> leader(run_.components.size());
    std::iota(leader.begin(), leader.end(), size_t{0});
    for (const auto& members : members_) {
      for (const size_t member : members) {
        const size_t from = leader[member], to = leader[members.front()];
        std::replace(leader.begin(), leader.end(), from, to);
      }
    }
    std::map<size_t, Group> found;
    for (size_t i = 0; i < leader.size(); ++i) found[leader[i]].components.push_back(i);
    for (size_t phase = 0; phase < members_.size(); ++phase)
      found[leader[members_[phase].front()]].phases.push_back(phase);
    std::vector<Group> groups;
    for (auto& [key, group] : found) groups.push_back(std::move(group));
    return groups;
  }

  void visit(const Group& group, size_t place) {
    if (place == group.components.size()) {
      judge(group);
      return;
    }
    const size_t component = group.components[place];
    for (size_t i = 0; i < choices_[component].size(); ++i) {
      picked_[component] = i;
      visit(group, place + 1);
    }
  }

  Taken taken(size_t phase, const std::vector<size_t>& picked) const {
    Taken sum{profile_.reserve_bytes, 0};
    for (const size_t component : members_[phase]) {
      const ComponentChoice& what = choices_[component][picked[component]].what;
      sum.device += what.device_bytes;
      sum.host += what.host_bytes;
    }
    return sum;
  }

  int64_t pass_time(size_t phase, size_t manner, const std::vector<size_t>& picked) const {
    int64_t time = picoseconds(run_.phases[phase].manners[manner].seconds);
    for (size_t i = 0; i < members_[phase].size(); ++i)
      time = plus(time, times_[phase].by_manner[manner][i][picked[members_[phase][i]]]);
    return time;
  }

  int64_t all_passes(size_t phase, int64_t time) const {
    return whole(static_cast<double>(time) * run_.phases[phase].passes);
  }

  bool streams(size_t phase) const {
    return std::any_of(members_[phase].begin(), members_[phase].end(), [&](size_t component) {
      return choices_[component][picked_[component]].num_streamed > 0;
    });
  }

  // The manner of a phase that is best with what is picked; nullopt: none fits.
  std::optional<size_t> best_manner(size_t phase) const {
    const Taken base = taken(phase, picked_);
    std::optional<size_t> best;
    std::pair<int64_t, int64_t> best_score;
    const std::vector<Manner>& manners = run_.phases[phase].manners;
    for (size_t i = 0; i < manners.size(); ++i) {
      if (manners[i].needs_all_blocks && streams(phase)) continue;
      const int64_t device = base.device + manners[i].device_bytes;
      if (device > limits_.device_bytes || base.host + manners[i].host_bytes > limits_.host_bytes)
        continue;
      const int64_t time = pass_time(phase, i, picked_);
      const auto score = wants_smallest_ ? std::pair(device, time) : std::pair(time, int64_t{0});
      if (!best || score < best_score) best = i, best_score = score;
    }
    return best;
  }

  void judge(const Group& group) {
    std::vector<size_t> manners;
    int64_t time = 0, device = 0, streamed = 0, preference = 0;
    for (const size_t component : group.components) {
      const Choice& choice = choices_[component][picked_[component]];
      time = plus(time, choice.once_time);
      streamed += choice.num_streamed;
      preference += static_cast<int64_t>(choice.storage);
    }
    for (const size_t phase : group.phases) {
      const std::optional<size_t> manner = best_manner(phase);
      if (!manner) return;
      manners.push_back(*manner);
      time = plus(time, all_passes(phase, pass_time(phase, *manner, picked_)));
      device = std::max(
          device, taken(phase, picked_).device + run_.phases[phase].manners[*manner].device_bytes);
    }
    const Score score = wants_smallest_ ? Score(device, time, preference, streamed)
                                        : Score(time, preference, streamed, device);
    if (!best_ || score < best_->score) best_ = {score, picked_, manners, time};
  }

  PhaseChoice describe(size_t phase, const std::vector<size_t>& picked, size_t manner) const {
    const Manner& how = run_.phases[phase].manners[manner];
    const Taken base = taken(phase, picked);
    PhaseChoice choice{run_.phases[phase].name,
                       manner,
                       base.device + how.device_bytes,
                       base.host + how.host_bytes,
                       run_.phases[phase].passes,
                       0.0,
                       0.0};
    const int64_t time = pass_time(phase, manner, picked);
    int64_t computing = picoseconds(how.seconds);
    for (const size_t component : members_[phase]) {
      for (const TimedStep& step : order_of(how, run_.components[component].name))
        computing = plus(computing, repeated(step.time, how));
    }
    choice.seconds = seconds_of(time);
    choice.waited_seconds = seconds_of(time - computing);
    return choice;
  }

  const PlannedRun& run_;
  PlanLimits limits_;
  const DeviceProfile& profile_;
  bool wants_smallest_;
  std::vector<std::vector<Choice>> choices_;  // by component
  std::vector<std::vector<size_t>> members_;  // components, by phase
  std::vector<Times> times_;
  std::vector<size_t> picked_;
  std::optional<Best> best_;
};

}  // namespace

const ComponentChoice& MemoryPlan::component(std::string_view name) const {
  for (const ComponentChoice& choice : components) {
    if (choice.name == name) return choice;
  }
  throw Error(ErrorCode::kNotFound, "plan: no component '" + std::string(name) + "'");
}

const PhaseChoice* MemoryPlan::phase(std::string_view name) const {
  for (const PhaseChoice& choice : phases) {
    if (choice.name == name) return &choice;
  }
  return nullptr;
}

std::optional<MemoryPlan> plan_memory(const PlannedRun& run, const PlanLimits& limits,
                                      const DeviceProfile& profile) {
  return Search(run, limits, profile, /*wants_smallest=*/false).solve();
}

std::optional<MemoryPlan> smallest_plan(const PlannedRun& run, int64_t host_bytes,
                                        const DeviceProfile& profile) {
  return Search(run, {INT64_MAX, host_bytes}, profile, /*wants_smallest=*/true).solve();
}

std::vector<CurvePoint> plan_curve(const PlannedRun& run, int64_t host_bytes,
                                   const DeviceProfile& profile, int64_t count) {
  std::vector<CurvePoint> curve;
  const auto smallest = smallest_plan(run, host_bytes, profile);
  const auto fastest = plan_memory(run, {INT64_MAX, host_bytes}, profile);
  if (!smallest || !fastest) return curve;
  const int64_t low = smallest->device_bytes, high = std::max(low, fastest->device_bytes);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t limit =
        low + static_cast<int64_t>(static_cast<double>(high - low) * static_cast<double>(i) /
                                   static_cast<double>(std::max<int64_t>(1, count - 1)));
    if (auto plan = plan_memory(run, {limit, host_bytes}, profile))
      curve.push_back({limit, std::move(*plan)});
    if (low == high) break;
  }
  return curve;
}

}  // namespace atelier::memory
