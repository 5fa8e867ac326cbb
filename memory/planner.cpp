#include "memory/planner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "atelier/error.h"

#include "memory/pass_time.h"

namespace atelier::memory {

using passes::Arrivals;
using passes::picoseconds;
using passes::plus;
using passes::seconds_of;
using passes::streamed_time;
using passes::TimedStep;
using passes::whole;

namespace {

constexpr int64_t kMostPrefetch = 3;

int64_t copy_time(int64_t bytes, double bytes_per_second) {
  return picoseconds(static_cast<double>(bytes) / bytes_per_second);
}

// What a choice takes, in numbers of which less is never worse.
enum Cost : size_t { kDevice, kTurn, kHost, kStorage, kStreamed, kOnDisk, kOnce, kNumCosts };
using Costs =
    std::vector<int64_t>;  // these, then the time of a pass for each strategy of each phase

// What can be chosen for one component.
struct Choice {
  ComponentChoice what;
  Arrivals arrivals = {};
  Costs costs = Costs(kNumCosts, 0);
};

double copy_rate(Place place, const DeviceProfile& profile) {
  if (place != Place::kDisk) return profile.copy_bytes_per_second;
  return std::min(profile.copy_bytes_per_second, profile.disk_bytes_per_second);
}

Choice make_choice(const PlannedComponent& component, size_t storage, int64_t resident,
                   Place others, int64_t prefetch, const DeviceProfile& profile) {
  const StoredComponent& stored = component.storages[storage];
  const auto count = static_cast<int64_t>(stored.blocks.size());
  Choice choice;
  auto& [copies, comes, slots, are_from_ranks] = choice.arrivals;
  are_from_ranks = component.shards > 1;
  choice.what = {component.name,   stored.storage, count, resident, others,
                 component.shards, prefetch,       0,     0};
  copies.assign(stored.blocks.size(), 0);
  const bool takes_turns = component.takes_turns && resident < count;
  if (takes_turns) comes.assign(stored.blocks.size(), 0);
  int64_t device = stored.outside, in_turn = 0, host = 0, once_time = 0, largest = 0;
  const ResidencyPlan plan = spread_residents(count, resident, others, prefetch);
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    const int64_t once = stored.once.empty() || resident == count ? 0 : stored.once[i];
    const bool stays = component.shards == 1 && plan.blocks[i] == Place::kDevice;
    const int64_t resting = (stored.blocks[i] + component.shards - 1) / component.shards;
    if (takes_turns && stays) {
      in_turn += stored.blocks[i] - once;
      comes[i] = copy_time(stored.blocks[i] - once, copy_rate(others, profile));
    } else if (stays) {
      device += stored.blocks[i] - once;
      host += once;
      once_time += copy_time(once, profile.copy_bytes_per_second);
      continue;
    }
    if (!stays) {
      const int64_t streamed = stored.blocks[i] - once;
      largest = std::max(largest, streamed);
      const int64_t time = stored.gathers.empty() ? copy_time(streamed, copy_rate(others, profile))
                                                  : picoseconds(stored.gathers[i]);
      copies[i] = std::max<int64_t>(1, time);
    }
    once_time += copy_time(once, copy_rate(others, profile));
    if (others == Place::kHost)
      host += (resting + component.host_sharers - 1) / component.host_sharers;
    if (others == Place::kDevice) device += resting;
    if (!stored.kept.empty()) device += stored.kept[i];
  }
  const int64_t num_streamed = count - resident;
  slots = std::min(prefetch + 1, num_streamed);
  (takes_turns ? in_turn : device) += slots * largest;
  choice.what.device_bytes = device + in_turn;
  choice.what.host_bytes = host;
  // Parts that rest on the host are copied before they are gathered.
  const int64_t moves = component.shards > 1 && others == Place::kHost ? 2 : 1;
  choice.costs = {device,
                  in_turn,
                  host,
                  static_cast<int64_t>(storage),
                  moves * num_streamed,
                  others == Place::kDisk ? num_streamed : 0,
                  once_time};
  return choice;
}

std::vector<Choice> choices_of(const PlannedComponent& component, int64_t prefetch,
                               const DeviceProfile& profile) {
  std::vector<Choice> choices;
  for (size_t storage = 0; storage < component.storages.size(); ++storage) {
    const auto count = static_cast<int64_t>(component.storages[storage].blocks.size());
    if (component.shards > 1 && count > 0) {
      for (const Place place : {Place::kDevice, Place::kHost}) {
        if (!component.others || *component.others == place)
          choices.push_back(make_choice(component, storage, 0, place, prefetch, profile));
      }
      continue;
    }
    const bool may_stream = component.may_stream && count > 0;
    const int64_t wanted = std::min(component.resident.value_or(count), count);
    if (!may_stream || !component.resident || wanted == count)
      choices.push_back(make_choice(component, storage, count,
                                    component.others.value_or(Place::kHost), prefetch, profile));
    if (!may_stream) continue;
    for (int64_t resident = 0; resident < count; ++resident) {
      if (component.resident && resident != wanted) continue;
      for (const Place place : {Place::kHost, Place::kDisk}) {
        if (component.others && *component.others != place) continue;
        choices.push_back(make_choice(component, storage, resident, place, prefetch, profile));
      }
    }
  }
  return choices;
}

// Components that are on the device together, in some phase, and the phases that they are in.
struct PhaseGroup {
  std::vector<size_t> components, phases;
};

// Whether `a` is in no way worse than `b`.
bool is_as_good(const Costs& a, const Costs& b) {
  return std::ranges::equal(a, b, std::less_equal());
}

// What is best is the least of these, from left to right.
using Score = std::array<int64_t, 5>;

// Branch and bound. Less of any cost never makes a plan worse, so choices that are in no way better
// than another one of their component are left out, and components that are not picked yet count
// with the least of each cost that any of their choices has that may still fit.
class PlanSearch {
 public:
  PlanSearch(const PlannedRun& run, int64_t prefetch, const PlanLimits& limits,
             const DeviceProfile& profile, bool wants_smallest)
      : run_(run), limits_(limits), profile_(profile), wants_smallest_(wants_smallest) {
    size_t num_costs = kNumCosts;
    for (const PlannedPhase& phase : run_.phases) {
      std::vector<size_t>& members = members_.emplace_back();
      for (const std::string& name : phase.components) members.push_back(component_index(name));
      first_times_.push_back(num_costs);
      num_costs += phase.strategies.size();
    }
    for (size_t i = 0; i < run_.components.size(); ++i) add_front(i, prefetch);
  }

  // Finds the best of the plans that take less than `bar`, in picoseconds or, where the smallest is
  // wanted, in bytes. nullopt: there is none.
  std::optional<MemoryPlan> solve(int64_t bar) {
    MemoryPlan plan;
    plan.components.resize(run_.components.size());
    plan.phases.resize(run_.phases.size());
    plan.device_bytes = profile_.reserve_bytes;
    int64_t total = 0;
    for (const PhaseGroup& group : groups()) {
      best_.reset();
      picked_.assign(run_.components.size(), nullptr);
      chosen_.assign(run_.components.size(), 0);
      bar_ = wants_smallest_ ? bar : bar - total;
      visit(group, 0);
      if (!best_) return std::nullopt;
      for (const size_t component : group.components) {
        const Choice& choice = fronts_[component].choices[best_->chosen[component]];
        picked_[component] = &choice.costs;
        plan.components[component] = choice.what;
        total = plus(total, choice.costs[kOnce]);
      }
      for (const size_t phase : group.phases) {
        plan.phases[phase] = describe(phase);
        total = plus(total, all_passes(phase, fit_of(phase)->time));
      }
    }
    for (const PhaseChoice& phase : plan.phases) {
      plan.device_bytes = std::max(plan.device_bytes, phase.device_bytes);
      plan.host_bytes = std::max(plan.host_bytes, phase.host_bytes);
    }
    plan.seconds = seconds_of(total);
    return plan;
  }

  int64_t num_tried() const { return num_tried_; }

 private:
  // The choices of a component, the smallest on the device first, and behind each the least of
  // every cost that it or one before it has.
  struct Front {
    std::vector<Choice> choices;
    std::vector<Costs> least;
  };
  struct Best {
    Score score;
    std::vector<size_t> chosen;
  };
  // How a phase runs with what is picked: the wanted one of the strategies that fit, and the least
  // bytes of any.
  struct Fit {
    size_t strategy = 0;
    int64_t time = 0, device = 0, least_device = 0;
  };

  size_t component_index(const std::string& name) const {
    for (size_t i = 0; i < run_.components.size(); ++i) {
      if (run_.components[i].name == name) return i;
    }
    throw Error(ErrorCode::kInternal, "planner: no component '" + name + "'");
  }

  void add_front(size_t component, int64_t prefetch) {
    std::vector<Choice> choices = choices_of(run_.components[component], prefetch, profile_);
    std::erase_if(choices, [&](const Choice& choice) {
      return choice.what.device_bytes > limits_.device_bytes;
    });
    add_times(component, choices);
    std::ranges::stable_sort(choices, {}, [](const Choice& choice) { return choice.costs; });
    Front& front = fronts_.emplace_back();
    for (Choice& choice : choices) {
      if (std::ranges::any_of(front.choices, [&](const Choice& other) {
            return is_as_good(other.costs, choice.costs);
          }))
        continue;
      Costs least = choice.costs;
      if (!front.least.empty())
        std::ranges::transform(least, front.least.back(), least.begin(),
                               [](int64_t a, int64_t b) { return std::min(a, b); });
      front.least.push_back(std::move(least));
      front.choices.push_back(std::move(choice));
    }
  }

  void add_times(size_t component, std::vector<Choice>& choices) const {
    for (size_t phase = 0; phase < run_.phases.size(); ++phase) {
      const bool is_member = std::ranges::count(members_[phase], component) > 0;
      for (const Strategy& strategy : run_.phases[phase].strategies) {
        std::vector<TimedStep> order;
        if (is_member) order = order_of(strategy, run_.components[component].name);
        const double share = share_of(strategy, run_.components[component]);
        for (Choice& choice : choices)
          choice.costs.push_back(
              order.empty() ? 0 : all_repeats(order, choice.arrivals, share, strategy));
      }
    }
  }

  static double share_of(const Strategy& strategy, const PlannedComponent& component) {
    const auto share = strategy.shares.find(component.name);
    return share == strategy.shares.end() ? 1.0 : share->second;
  }

  // The time of all repeats: the first one awaits, the last ones send.
  static int64_t all_repeats(const std::vector<TimedStep>& order, const Arrivals& arrivals,
                             double share, const Strategy& strategy) {
    const bool awaits =
        std::ranges::any_of(order, [](const auto& step) { return step.awaits > 0; });
    const double repeats = strategy.repeats, sending = std::min(strategy.sending_repeats, repeats);
    const double awaiting = awaits ? std::min(1.0, repeats) : 0.0;
    const double both = std::max(0.0, sending + awaiting - repeats);
    double time = 0.0;
    const auto add = [&](double times, bool does_await, bool does_send) {
      if (times <= 0) return;
      std::vector<TimedStep> steps = order;
      for (TimedStep& step : steps) {
        if (!does_await) step.awaits = 0;
        if (!does_send) step.sends = 0;
      }
      time += times * passed_time(steps, arrivals, share);
    };
    add(both, true, true);
    add(awaiting - both, true, false);
    add(sending - both, false, true);
    add(repeats - awaiting - sending + both, false, false);
    return whole(time);
  }

  // The time if no rank had to wait for another one.
  static int64_t without_exchanges(std::vector<TimedStep> order, Arrivals arrivals, double share,
                                   const Strategy& strategy) {
    for (TimedStep& step : order) step.awaits = step.sends = 0;
    if (arrivals.are_from_ranks) arrivals.copies.assign(arrivals.copies.size(), 0);
    return all_repeats(order, arrivals, share, strategy);
  }

  // The time of a mean pass, of which the component runs in `share`. Before a pass that it runs in
  // comes one of another component in as many as it does not run in.
  static double passed_time(const std::vector<TimedStep>& order, const Arrivals& arrivals,
                            double share) {
    Arrivals alone = arrivals;
    alone.comes.clear();
    auto time = static_cast<double>(streamed_time(order, alone));
    if (share < 1.0 && !arrivals.comes.empty())
      time += (1.0 - share) * (static_cast<double>(streamed_time(order, arrivals)) - time);
    return share * time;
  }

  static std::vector<TimedStep> order_of(const Strategy& strategy, const std::string& component) {
    std::vector<TimedStep> order;
    const auto seconds_of_block = [](const std::map<std::string, std::vector<double>>& seconds,
                                     const std::string& name, size_t block) {
      const auto found = seconds.find(name);
      return found == seconds.end() ? 0 : picoseconds(found->second[block]);
    };
    const auto forward = strategy.forward.find(component);
    if (forward == strategy.forward.end()) return order;
    for (size_t i = 0; i < forward->second.size(); ++i)
      order.push_back({.block = i,
                       .time = picoseconds(forward->second[i]),
                       .awaits = seconds_of_block(strategy.awaits, component, i)});
    const auto backward = strategy.backward.find(component);
    if (backward == strategy.backward.end()) return order;
    for (size_t i = backward->second.size(); i-- > 0;)
      order.push_back({.block = i,
                       .time = picoseconds(backward->second[i]),
                       .sends = seconds_of_block(strategy.sends, component, i)});
    return order;
  }

  std::vector<PhaseGroup> groups() const {
    std::vector<size_t> leader(run_.components.size());
    std::iota(leader.begin(), leader.end(), size_t{0});
    for (const auto& members : members_) {
      for (const size_t member : members) {
        const size_t from = leader[member], to = leader[members.front()];
        std::replace(leader.begin(), leader.end(), from, to);
      }
    }
    std::map<size_t, PhaseGroup> found;
    for (size_t i = 0; i < leader.size(); ++i) found[leader[i]].components.push_back(i);
    for (size_t phase = 0; phase < members_.size(); ++phase)
      found[leader[members_[phase].front()]].phases.push_back(phase);
    std::vector<PhaseGroup> groups;
    for (auto& [key, group] : found) groups.push_back(std::move(group));
    return groups;
  }

  // Picks for the components from `place` on, the most promising first.
  void visit(const PhaseGroup& group, size_t place) {
    const size_t component = group.components[place];
    const std::vector<Choice>& choices = fronts_[component].choices;
    std::vector<std::pair<Score, size_t>> promising;
    for (size_t i = 0; i < choices.size(); ++i) {
      picked_[component] = &choices[i].costs;
      if (const auto score = least_score(group, place + 1); score && score->front() < bar_)
        promising.emplace_back(*score, i);
    }
    std::ranges::sort(promising);
    for (const auto& [score, i] : promising) {
      if (best_ && score >= best_->score) return;
      picked_[component] = &choices[i].costs;
      chosen_[component] = i;
      if (place + 1 < group.components.size()) {
        visit(group, place + 1);
      } else {
        best_ = {score, chosen_};
      }
    }
  }

  // The score of what is picked, where the components from `place` on take the least that they can:
  // no pick of them gives less. nullopt: none fits.
  std::optional<Score> least_score(const PhaseGroup& group, size_t place) {
    ++num_tried_;
    const bool is_whole = place == group.components.size();
    if (!is_whole && !pick_least(group, place)) return std::nullopt;
    int64_t time = 0, device = 0, storage = 0, streamed = 0, on_disk = 0;
    for (const size_t phase : group.phases) {
      const std::optional<Fit> fit = fit_of(phase);
      if (!fit) return std::nullopt;
      time = plus(time, all_passes(phase, fit->time));
      const bool is_exact = is_whole && !wants_smallest_;
      device = std::max(device, is_exact ? fit->device : fit->least_device);
    }
    if (wants_smallest_) return Score{device};
    for (const size_t component : group.components) {
      time = plus(time, (*picked_[component])[kOnce]);
      storage += (*picked_[component])[kStorage];
      streamed += (*picked_[component])[kStreamed];
      on_disk += (*picked_[component])[kOnDisk];
    }
    return Score{time, storage, streamed, device, on_disk};
  }

  // Picks the least of what fits, for the components from `place` on. Returns whether anything
  // does.
  bool pick_least(const PhaseGroup& group, size_t place) {
    const auto rest = std::span(group.components).subspan(place);
    for (const size_t component : rest) {
      if (fronts_[component].least.empty()) return false;
      picked_[component] = &fronts_[component].least.back();
    }
    for (const size_t component : rest) {
      const int64_t room = room_for(group, component);
      const std::vector<Choice>& choices = fronts_[component].choices;
      const auto end = std::ranges::upper_bound(
          choices, room, {}, [](const Choice& choice) { return choice.costs[kDevice]; });
      if (end == choices.begin()) return false;
      picked_[component] =
          &fronts_[component].least[static_cast<size_t>(end - choices.begin()) - 1];
    }
    return true;
  }

  // What a component may take of the device beside all others as they are picked.
  int64_t room_for(const PhaseGroup& group, size_t component) const {
    int64_t room = limits_.device_bytes;
    for (const size_t phase : group.phases) {
      if (std::ranges::count(members_[phase], component) == 0) continue;
      const auto& strategies = run_.phases[phase].strategies;
      const int64_t least = std::ranges::min(strategies, {}, &Strategy::device_bytes).device_bytes;
      const int64_t others = device_bytes(phase, component);
      room = std::min(room, limits_.device_bytes - profile_.reserve_bytes - least - others);
    }
    return room;
  }

  int64_t taken(size_t phase, Cost cost) const {
    int64_t sum = 0;
    for (const size_t component : members_[phase]) sum += (*picked_[component])[cost];
    return sum;
  }

  // What components take of the device, `without` one: of those that take turns the largest one.
  int64_t device_bytes(size_t phase, size_t without = SIZE_MAX) const {
    int64_t sum = 0, in_turn = 0;
    for (const size_t component : members_[phase]) {
      if (component == without) continue;
      sum += (*picked_[component])[kDevice];
      in_turn = std::max(in_turn, (*picked_[component])[kTurn]);
    }
    return sum + in_turn;
  }

  int64_t pass_time(size_t phase, size_t strategy) const {
    int64_t time = picoseconds(run_.phases[phase].strategies[strategy].seconds);
    for (const size_t component : members_[phase])
      time = plus(time, (*picked_[component])[first_times_[phase] + strategy]);
    return time;
  }

  // nullopt: no strategy fits.
  std::optional<Fit> fit_of(size_t phase) const {
    const int64_t device = profile_.reserve_bytes + device_bytes(phase);
    const int64_t host = taken(phase, kHost);
    const bool streams = taken(phase, kStreamed) > 0;
    std::optional<Fit> fit;
    const std::vector<Strategy>& strategies = run_.phases[phase].strategies;
    for (size_t i = 0; i < strategies.size(); ++i) {
      const int64_t bytes = device + strategies[i].device_bytes;
      if ((strategies[i].needs_all_blocks && streams) || bytes > limits_.device_bytes ||
          host + strategies[i].host_bytes > limits_.host_bytes)
        continue;
      const int64_t time = pass_time(phase, i);
      const int64_t least = fit ? std::min(fit->least_device, bytes) : bytes;
      if (!fit || (wants_smallest_ ? bytes < fit->device : time < fit->time))
        fit = {i, time, bytes, least};
      fit->least_device = least;
    }
    return fit;
  }

  int64_t all_passes(size_t phase, int64_t time) const {
    return whole(static_cast<double>(time) * run_.phases[phase].passes);
  }

  PhaseChoice describe(size_t phase) const {
    const Fit fit = fit_of(phase).value();
    const Strategy& how = run_.phases[phase].strategies[fit.strategy];
    PhaseChoice choice{.name = run_.phases[phase].name,
                       .strategy = fit.strategy,
                       .device_bytes = fit.device,
                       .host_bytes = taken(phase, kHost) + how.host_bytes,
                       .passes = run_.phases[phase].passes,
                       .seconds = seconds_of(fit.time)};
    int64_t computing = picoseconds(how.seconds), alone = computing;
    for (const size_t component : members_[phase]) {
      const double share = share_of(how, run_.components[component]);
      const std::vector<TimedStep> order = order_of(how, run_.components[component].name);
      if (order.empty()) continue;
      for (const TimedStep& step : order)
        computing = plus(computing, whole(static_cast<double>(step.time) * how.repeats * share));
      const Choice& chosen = fronts_[component].choices[best_->chosen[component]];
      alone = plus(alone, without_exchanges(order, chosen.arrivals, share, how));
    }
    choice.waited_seconds = seconds_of(alone - computing);
    choice.exchanged_seconds = seconds_of(fit.time - alone);
    return choice;
  }

  const PlannedRun& run_;
  PlanLimits limits_;
  const DeviceProfile& profile_;
  bool wants_smallest_;
  std::vector<std::vector<size_t>> members_;  // components, by phase
  std::vector<size_t> first_times_;           // among the costs, by phase
  std::vector<Front> fronts_;                 // by component
  std::vector<const Costs*> picked_;          // by component
  std::vector<size_t> chosen_;                // which of its choices that is
  std::optional<Best> best_;
  int64_t bar_ = 0;
  int64_t num_tried_ = 0;
};

// The best of all numbers of blocks that may come ahead; of equally good ones the fewest.
std::optional<MemoryPlan> best_plan(const PlannedRun& run, const PlanLimits& limits,
                                    const DeviceProfile& profile, bool wants_smallest) {
  std::optional<MemoryPlan> best;
  int64_t num_tried = 0;
  const int64_t most = run.prefetch.value_or(kMostPrefetch);
  for (int64_t prefetch = run.prefetch.value_or(1); prefetch <= most; ++prefetch) {
    int64_t bar = INT64_MAX;
    if (best) bar = wants_smallest ? best->device_bytes : picoseconds(best->seconds);
    PlanSearch search(run, prefetch, limits, profile, wants_smallest);
    if (auto plan = search.solve(bar)) best = std::move(plan);
    num_tried += search.num_tried();
  }
  if (best) best->num_tried = num_tried;
  return best;
}

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
  return best_plan(run, limits, profile, /*wants_smallest=*/false);
}

std::optional<MemoryPlan> smallest_plan(const PlannedRun& run, int64_t host_bytes,
                                        const DeviceProfile& profile) {
  const auto smallest = best_plan(run, {INT64_MAX, host_bytes}, profile, /*wants_smallest=*/true);
  return smallest ? plan_memory(run, {smallest->device_bytes, host_bytes}, profile) : std::nullopt;
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
