#include "memory/planner.h"

#include <functional>
#include <map>
#include <random>

#include "atelier/error.h"
#include "atelier/host/attention_rules.h"

#include "support/catch.h"

namespace atelier::memory {
namespace {

DeviceProfile slow_profile() {
  DeviceProfile profile;
  profile.name = "test";
  profile.reserve_bytes = 7;
  profile.flops_16 = profile.flops_32 = profile.attention_flops = 1e9;
  profile.memory_bytes_per_second = 1e9;
  profile.copy_bytes_per_second = 1000.0;
  profile.disk_bytes_per_second = 250.0;
  return profile;
}

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t below(int64_t count) {
    return static_cast<int64_t>(engine_() % static_cast<uint64_t>(count));
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool coin() { return below(2) == 0; }

 private:
  std::mt19937_64 engine_;
};

StoredComponent random_storage(Dice& dice, int64_t blocks, const std::string& name) {
  StoredComponent stored{.storage = name};
  for (int64_t i = 0; i < blocks; ++i) {
    stored.blocks.push_back(dice.between(10, 60));
    stored.once.push_back(dice.below(8));
  }
  stored.outside = dice.below(30);
  return stored;
}

// Three components in three phases, as a generation has them; sometimes with a backward pass.
PlannedRun random_run(uint64_t seed, int64_t most_blocks = 5) {
  Dice dice(seed);
  PlannedRun run;
  for (const char* name : {"text", "dit", "vae"}) {
    const bool may_stream = std::string(name) != "vae";
    const int64_t blocks = may_stream ? dice.between(1, most_blocks) : 0;
    PlannedComponent component{.name = name, .storages = {random_storage(dice, blocks, "plain")}};
    component.may_stream = may_stream;
    if (dice.coin()) component.storages.push_back(random_storage(dice, blocks, "fp8"));
    if (may_stream && dice.below(4) == 0) component.resident = dice.below(blocks + 1);
    if (may_stream && dice.below(4) == 0) component.others = Place::kDisk;
    run.components.push_back(std::move(component));
  }
  if (dice.coin()) run.prefetch = dice.between(1, 3);
  const auto add = [&](const std::string& name, std::vector<std::string> members, size_t main) {
    PlannedPhase phase{.name = name, .components = std::move(members)};
    phase.passes = static_cast<double>(dice.between(1, 4));
    const bool is_training = dice.coin();
    for (int64_t count = dice.between(1, 3); count > 0; --count) {
      Strategy strategy{.device_bytes = dice.below(60), .host_bytes = dice.below(20)};
      strategy.seconds = static_cast<double>(dice.below(50)) * 1e-3;
      strategy.repeats = static_cast<double>(dice.between(1, 2));
      strategy.needs_all_blocks = dice.below(4) == 0;
      const PlannedComponent& component = run.components[main];
      for (size_t i = 0; i < component.storages[0].blocks.size(); ++i) {
        strategy.forward[component.name].push_back(static_cast<double>(dice.below(40)) * 1e-3);
        if (is_training)
          strategy.backward[component.name].push_back(static_cast<double>(dice.below(80)) * 1e-3);
      }
      phase.strategies.push_back(std::move(strategy));
    }
    run.phases.push_back(std::move(phase));
  };
  add("encode", {"text"}, 0);
  add("denoise",
      dice.coin() ? std::vector<std::string>{"dit"} : std::vector<std::string>{"dit", "text"}, 1);
  add("decode", {"dit", "vae"}, 2);
  return run;
}

// One way to place a component, written apart from the planner.
struct Placed {
  std::vector<int64_t> copied;  // bytes of each block; 0: it is there
  std::vector<int64_t> comes;   // bytes of each block that comes for a turn and stays
  int64_t slots = 0, device = 0, turn = 0, host = 0;
  double rate = 1.0, once_seconds = 0.0;
  bool streams = false;
};

std::vector<Placed> every_place(const PlannedComponent& component, int64_t prefetch) {
  std::vector<Placed> all;
  for (const StoredComponent& stored : component.storages) {
    const auto count = static_cast<int64_t>(stored.blocks.size());
    for (int64_t resident = 0; resident <= count; ++resident) {
      if (!component.may_stream && resident < count) continue;
      if (component.resident && resident != std::min(*component.resident, count)) continue;
      for (const Place place : {Place::kHost, Place::kDisk}) {
        if (component.others && *component.others != place) continue;
        Placed placed;
        placed.rate = place == Place::kHost ? 1000.0 : 250.0;
        placed.device = stored.outside;
        const ResidencyPlan plan = spread_residents(count, resident, place, prefetch);
        const bool takes_turns = component.takes_turns && resident < count;
        int64_t largest = 0, streamed = 0;
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<size_t>(i);
          const bool stays = plan.blocks[at] == Place::kDevice;
          const int64_t once = resident < count ? stored.once[at] : 0;
          const int64_t moved = stored.blocks[at] - once;
          placed.copied.push_back(stays ? 0 : moved);
          placed.comes.push_back(stays && takes_turns ? moved : 0);
          (takes_turns ? placed.turn : placed.device) += stays ? moved : 0;
          if (stays && !takes_turns) {
            placed.host += once;
            placed.once_seconds += static_cast<double>(once) / 1000.0;
            continue;
          }
          streamed += stays ? 0 : 1;
          largest = std::max(largest, stays ? 0 : moved);
          placed.once_seconds += static_cast<double>(once) / placed.rate;
          if (place == Place::kHost) placed.host += stored.blocks[at];
        }
        placed.slots = std::min(prefetch + 1, streamed);
        (takes_turns ? placed.turn : placed.device) += placed.slots * largest;
        placed.streams = streamed > 0;
        all.push_back(std::move(placed));
      }
    }
  }
  return all;
}

// Seconds of a pass through blocks in `order` once passes are alike, written apart from the
// planner: copies run beside it, one after another, each as soon as one of the `slots` is free.
// `is_turn`: what stays comes in each pass, into the places of what stayed in the pass before.
double pass_seconds(const std::vector<std::pair<size_t, double>>& order, const Placed& where,
                    bool is_turn) {
  std::vector<double> places;  // when they are free
  std::vector<double> ends;    // of computing, for each copy
  double copied = 0, computed = 0, before = 0;
  size_t last = SIZE_MAX;
  for (int pass = 0; pass < 3; ++pass) {
    before = computed;
    std::map<size_t, double> ran;  // when blocks that stay did so last
    size_t place = 0;
    for (const auto& [block, seconds] : order) {
      if (is_turn && where.comes[block] > 0 && !ran.contains(block)) {
        if (pass > 0) copied = std::max(copied, places.at(place++));
        copied += static_cast<double>(where.comes[block]) / where.rate;
        computed = std::max(computed, copied);
      }
      const auto bytes = static_cast<double>(where.copied[block]);
      if (bytes > 0 && block != last) {
        const auto slots = static_cast<size_t>(where.slots);
        copied = std::max(copied, ends.size() < slots ? 0.0 : ends[ends.size() - slots]);
        copied += bytes / where.rate;
        computed = std::max(computed, copied);
        ends.emplace_back();
        last = block;
      }
      computed += seconds;
      if (bytes > 0) ends.back() = computed;
      if (where.comes[block] > 0) ran[block] = computed;
    }
    places.clear();
    for (const auto& [block, end] : ran) places.push_back(end);
    std::ranges::sort(places);
  }
  return computed - before;
}

double phase_seconds(const Strategy& strategy, const PlannedPhase& phase,
                     const std::map<std::string, Placed>& placed) {
  double seconds = strategy.seconds;
  for (const std::string& name : phase.components) {
    const auto forward = strategy.forward.find(name);
    if (forward == strategy.forward.end()) continue;
    std::vector<std::pair<size_t, double>> order;
    for (size_t i = 0; i < forward->second.size(); ++i) order.push_back({i, forward->second[i]});
    if (const auto backward = strategy.backward.find(name); backward != strategy.backward.end()) {
      for (size_t i = backward->second.size(); i-- > 0;) order.push_back({i, backward->second[i]});
    }
    const Placed& where = placed.at(name);
    const double share = strategy.shares.contains(name) ? strategy.shares.at(name) : 1.0;
    seconds += strategy.repeats * share *
               (share * pass_seconds(order, where, /*is_turn=*/false) +
                (1.0 - share) * pass_seconds(order, where, /*is_turn=*/true));
  }
  return seconds * phase.passes;
}

// Seconds of one combination; nullopt when it does not fit.
std::optional<double> run_seconds(const PlannedRun& run, const PlanLimits& limits,
                                  const DeviceProfile& profile,
                                  const std::map<std::string, Placed>& placed) {
  double total = 0;
  for (const auto& [name, where] : placed) total += where.once_seconds;
  for (const PlannedPhase& phase : run.phases) {
    std::optional<double> least;
    int64_t device = profile.reserve_bytes, turn = 0, host = 0;
    bool streams = false;
    for (const std::string& name : phase.components) {
      device += placed.at(name).device;
      turn = std::max(turn, placed.at(name).turn);
      host += placed.at(name).host;
      streams |= placed.at(name).streams;
    }
    device += turn;
    for (const Strategy& strategy : phase.strategies) {
      if (device + strategy.device_bytes > limits.device_bytes ||
          host + strategy.host_bytes > limits.host_bytes || (strategy.needs_all_blocks && streams))
        continue;
      const double seconds = phase_seconds(strategy, phase, placed);
      least = std::min(least.value_or(seconds), seconds);
    }
    if (!least) return std::nullopt;
    total += *least;
  }
  return total;
}

// Seconds of the best of all combinations; nullopt when none fits.
std::optional<double> brute_force(const PlannedRun& run, const PlanLimits& limits,
                                  const DeviceProfile& profile) {
  std::optional<double> best;
  std::map<std::string, Placed> placed;
  const std::function<void(size_t, int64_t)> place = [&](size_t number, int64_t prefetch) {
    if (number < run.components.size()) {
      for (const Placed& where : every_place(run.components[number], prefetch)) {
        placed[run.components[number].name] = where;
        place(number + 1, prefetch);
      }
    } else if (const auto seconds = run_seconds(run, limits, profile, placed)) {
      best = std::min(best.value_or(*seconds), *seconds);
    }
  };
  for (int64_t prefetch = 1; prefetch <= 3; ++prefetch) {
    if (run.prefetch.value_or(prefetch) == prefetch) place(0, prefetch);
  }
  return best;
}

TEST_CASE("The planner finds the best of all combinations", "[planner]") {
  const DeviceProfile profile = slow_profile();
  int num_fitting = 0, num_refused = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PlannedRun run = random_run(seed);
    Dice dice(seed + 10'000);
    const PlanLimits limits{dice.between(40, 400), dice.coin() ? INT64_MAX : dice.between(20, 200)};
    const auto expected = brute_force(run, limits, profile);
    const auto plan = plan_memory(run, limits, profile);
    INFO("seed " << seed);
    REQUIRE(plan.has_value() == expected.has_value());
    (plan ? num_fitting : num_refused) += 1;
    if (!plan) continue;
    CHECK(plan->seconds == Approx(*expected).epsilon(1e-9).margin(1e-9));
    CHECK(plan->device_bytes <= limits.device_bytes);
    CHECK(plan->host_bytes <= limits.host_bytes);
  }
  CHECK(num_fitting > 100);
  CHECK(num_refused > 20);
}

// Beside the components of random_run() a second denoiser, with a phase of its own.
PlannedRun random_run_of_experts(uint64_t seed) {
  Dice dice(seed + 20'000);
  PlannedRun run = random_run(seed, /*most_blocks=*/2);
  PlannedComponent expert = run.components[1];
  expert.name = "expert";
  expert.storages = {random_storage(dice, 2, "plain"), random_storage(dice, 2, "int8")};
  run.components.push_back(expert);
  PlannedPhase phase = run.phases[1];
  phase.components = {"expert"};
  if (dice.coin()) phase.components.emplace_back("dit");
  if (dice.coin()) phase.components.emplace_back("text");
  for (Strategy& strategy : phase.strategies) {
    strategy.backward.clear();
    strategy.forward = {{"expert", {0.02, static_cast<double>(dice.below(40)) * 1e-3}}};
  }
  run.phases.insert(run.phases.begin() + 2, phase);
  run.phases.back().components.emplace_back("expert");
  return run;
}

TEST_CASE("The planner finds the best of all combinations of two denoisers", "[planner]") {
  const DeviceProfile profile = slow_profile();
  int num_fitting = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const PlannedRun run = random_run_of_experts(seed);
    Dice dice(seed + 10'000);
    const PlanLimits limits{dice.between(80, 400), dice.coin() ? INT64_MAX : dice.between(40, 200)};
    const auto expected = brute_force(run, limits, profile);
    const auto plan = plan_memory(run, limits, profile);
    INFO("seed " << seed);
    REQUIRE(plan.has_value() == expected.has_value());
    if (!plan) continue;
    ++num_fitting;
    CHECK(plan->seconds == Approx(*expected).epsilon(1e-9).margin(1e-9));
  }
  CHECK(num_fitting > 40);
}

// Experts that are trained in one run: a pass is of one of them.
PlannedRun random_training_of_experts(uint64_t seed) {
  PlannedRun run = random_run_of_experts(seed);
  Dice dice(seed + 30'000);
  const auto seconds = [&](size_t count) {
    std::vector<double> times;
    for (size_t i = 0; i < count; ++i) times.push_back(static_cast<double>(dice.below(90)) * 1e-3);
    return times;
  };
  PlannedPhase phase{.name = "train", .components = {"dit", "expert"}, .passes = 3.0};
  for (int64_t count = dice.between(1, 2); count > 0; --count) {
    Strategy strategy{.device_bytes = dice.below(60), .needs_all_blocks = dice.below(4) == 0};
    const double share = static_cast<double>(dice.between(1, 9)) * 0.1;
    strategy.shares = {{"dit", share}, {"expert", 1.0 - share}};
    for (const size_t i : {size_t{1}, size_t{3}}) {
      PlannedComponent& component = run.components[i];
      component.takes_turns = true;
      const size_t blocks = component.storages[0].blocks.size();
      strategy.forward[component.name] = seconds(blocks);
      strategy.backward[component.name] = seconds(blocks);
    }
    phase.strategies.push_back(std::move(strategy));
  }
  run.phases.push_back(std::move(phase));
  return run;
}

TEST_CASE("The planner finds the best of all combinations of denoisers that take turns",
          "[planner]") {
  const DeviceProfile profile = slow_profile();
  int num_fitting = 0, num_smaller = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    PlannedRun run = random_training_of_experts(seed);
    Dice dice(seed + 10'000);
    const PlanLimits limits{dice.between(80, 300), dice.coin() ? INT64_MAX : dice.between(40, 200)};
    const auto expected = brute_force(run, limits, profile);
    const auto plan = plan_memory(run, limits, profile);
    INFO("seed " << seed);
    REQUIRE(plan.has_value() == expected.has_value());
    if (!plan) continue;
    ++num_fitting;
    CHECK(plan->seconds == Approx(*expected).epsilon(1e-9).margin(1e-9));
    CHECK(plan->device_bytes <= limits.device_bytes);
    const auto together = smallest_plan(run, INT64_MAX, profile);
    for (PlannedComponent& component : run.components) component.takes_turns = false;
    const auto apart = smallest_plan(run, INT64_MAX, profile);
    if (!together || !apart) continue;
    CHECK(together->device_bytes <= apart->device_bytes);
    num_smaller += together->device_bytes < apart->device_bytes ? 1 : 0;
  }
  CHECK(num_fitting > 40);
  CHECK(num_smaller > 20);
}

// As bench_planner.cpp has it, with blocks of different sizes: 2.8e8 combinations and more.
TEST_CASE("The planner looks at few of the combinations", "[planner]") {
  Dice dice(1);
  PlannedRun run;
  const auto add = [&](const char* name, size_t blocks, const std::vector<const char*>& storages) {
    PlannedComponent component{.name = name, .may_stream = blocks > 0};
    std::vector<int64_t> plain;
    for (size_t i = 0; i < blocks; ++i) plain.push_back(dice.between(500, 700));
    for (const char* storage : storages) {
      component.storages.push_back({.storage = storage, .blocks = plain, .outside = 200});
      for (int64_t& bytes : plain) bytes = bytes * 3 / 4;
    }
    run.components.push_back(component);
  };
  const auto add_phase = [&](const char* main, double seconds, double passes) {
    PlannedPhase phase{.name = main, .components = {"text", "high", "low", "vae"}};
    phase.passes = passes;
    for (const double repeats : {1.0, 2.0}) {
      Strategy strategy{.device_bytes = repeats == 1.0 ? 3000 : 1800, .repeats = repeats};
      strategy.forward[main] = std::vector<double>(main == std::string("text") ? 24 : 40, seconds);
      phase.strategies.push_back(std::move(strategy));
    }
    run.phases.push_back(std::move(phase));
  };
  const auto storages =
      GENERATE(std::vector<const char*>{"plain", "fp8", "int8"}, std::vector<const char*>{"plain"});
  add("text", 24, storages);
  add("high", 40, storages);
  add("low", 40, storages);
  add("vae", 0, {"plain"});
  add_phase("text", 0.01, 2);
  add_phase("high", 0.3, 20);
  add_phase("low", 0.4, 30);
  for (const int64_t limit : {8'000, 16'000, 24'000, 32'000, 48'000, 90'000}) {
    const auto plan = plan_memory(run, {limit, 60'000}, slow_profile());
    REQUIRE(plan);
    INFO("limit " << limit);
    CHECK(plan->device_bytes <= limit);
    CHECK(plan->num_tried > 0);
    CHECK(plan->num_tried < 50'000);
  }
}

TEST_CASE("More memory never gives a slower plan, and the smallest plan is the limit",
          "[planner]") {
  const DeviceProfile profile = slow_profile();
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    const PlannedRun run = random_run(seed);
    const auto smallest = smallest_plan(run, INT64_MAX, profile);
    if (!smallest) continue;  // every way needs blocks that the user sent away
    CHECK(!plan_memory(run, {smallest->device_bytes - 1, INT64_MAX}, profile));
    double before = 1e30;
    for (int64_t limit = smallest->device_bytes; limit < 500; limit += 13) {
      const auto plan = plan_memory(run, {limit, INT64_MAX}, profile);
      REQUIRE(plan);
      CHECK(plan->seconds <= before);
      CHECK(plan->device_bytes <= limit);
      before = plan->seconds;
    }
  }
}

TEST_CASE("What fits stays on the device, as it is", "[planner]") {
  PlannedRun run;
  StoredComponent plain{.blocks = std::vector<int64_t>(10, 100), .outside = 50};
  StoredComponent narrow{.storage = "fp8", .blocks = std::vector<int64_t>(10, 50), .outside = 50};
  run.components = {{.name = "dit", .storages = {plain, narrow}, .may_stream = true}};
  Strategy strategy{.device_bytes = 100};
  strategy.forward["dit"] = std::vector<double>(10, 0.2);
  run.phases = {{.name = "denoise", .components = {"dit"}, .strategies = {strategy}, .passes = 20}};
  DeviceProfile profile = slow_profile();

  SECTION("with room for everything") {
    const auto plan = plan_memory(run, {2000, INT64_MAX}, profile);
    REQUIRE(plan);
    CHECK(plan->component("dit").resident == 10);
    CHECK(plan->component("dit").storage == "plain");
    CHECK(plan->device_bytes == 50 + 1000 + 100 + 7);
    CHECK(plan->phase("denoise")->waited_seconds == 0);
    CHECK(plan->seconds == Approx(40.0));
  }
  SECTION("copies that hide behind computing cost nothing") {
    const auto plan = plan_memory(run, {600, INT64_MAX}, profile);  // a copy takes 0.1 s
    REQUIRE(plan);
    CHECK(plan->component("dit").storage == "plain");
    CHECK(plan->component("dit").resident > 0);
    CHECK(plan->phase("denoise")->waited_seconds == 0);
    CHECK(plan->host_bytes == 100 * (10 - plan->component("dit").resident));
  }
  SECTION("where copies are slow, the narrower storage is faster") {
    profile.copy_bytes_per_second = 100.0;
    const auto plan = plan_memory(run, {700, INT64_MAX}, profile);
    REQUIRE(plan);
    CHECK(plan->component("dit").storage == "fp8");
    CHECK(plan->component("dit").resident == 10);
  }
  SECTION("the host's memory is a limit too, and files do without it") {
    const auto plan = plan_memory(run, {600, 100}, profile);
    REQUIRE(plan);
    CHECK(plan->host_bytes <= 100);
    const bool streams = plan->component("dit").resident < 10;
    CHECK((!streams || plan->component("dit").others == Place::kDisk ||
           plan->component("dit").host_bytes <= 100));
  }
  SECTION("what the user said stays") {
    run.components[0].resident = 3;
    run.components[0].others = Place::kDisk;
    const auto plan = plan_memory(run, {2000, INT64_MAX}, profile);
    REQUIRE(plan);
    CHECK(plan->component("dit").resident == 3);
    CHECK(plan->component("dit").others == Place::kDisk);
  }
  SECTION("nothing fits into nothing") {
    CHECK(!plan_memory(run, {200, INT64_MAX}, profile));
    CHECK(smallest_plan(run, INT64_MAX, profile)->device_bytes == 50 + 2 * 50 + 100 + 7);
  }
  SECTION("the curve falls") {
    profile.copy_bytes_per_second = 200.0;
    const std::vector<CurvePoint> curve = plan_curve(run, INT64_MAX, profile, 12);
    REQUIRE(curve.size() == 12);
    for (size_t i = 1; i < curve.size(); ++i) {
      CHECK(curve[i].limit_bytes > curve[i - 1].limit_bytes);
      CHECK(curve[i].plan.seconds <= curve[i - 1].plan.seconds);
    }
    CHECK(curve.front().plan.seconds > curve.back().plan.seconds);
  }
}

TEST_CASE("Copies that outlast computing set the time of a pass", "[planner]") {
  const auto seconds = [](int64_t resident, double bytes_per_second) {
    const StoredComponent stored{.blocks = std::vector<int64_t>(4, 200)};
    Strategy strategy;
    strategy.forward["dit"] = std::vector<double>(4, 0.1);
    PlannedRun run;
    run.components = {
        {.name = "dit", .storages = {stored}, .may_stream = true, .resident = resident}};
    run.phases = {{.name = "denoise", .components = {"dit"}, .strategies = {strategy}}};
    DeviceProfile profile = slow_profile();
    profile.copy_bytes_per_second = bytes_per_second;
    return plan_memory(run, {}, profile).value().phase("denoise")->seconds;
  };
  CHECK(seconds(4, 1000) == Approx(0.4));
  CHECK(seconds(0, 1000) == Approx(0.8));  // 4 copies of 0.2 s
  CHECK(seconds(0, 4000) == Approx(0.4));  // hidden
  CHECK(seconds(2, 1000) == Approx(0.4));
}

TEST_CASE("A plan of sixty blocks and twenty budgets is found at once", "[planner]") {
  PlannedRun run;
  run.components = {
      {.name = "dit", .storages = {{.blocks = std::vector<int64_t>(60, 680)}}, .may_stream = true}};
  PlannedPhase phase{.name = "train", .components = {"dit"}};
  for (int i = 0; i <= 20; ++i) {
    Strategy strategy{.device_bytes = 28000 - 1200 * i};
    strategy.forward["dit"] = std::vector<double>(60, 0.01);
    strategy.backward["dit"] = std::vector<double>(60, 0.02 + 0.0005 * i);
    phase.strategies.push_back(std::move(strategy));
  }
  run.phases = {phase};
  DeviceProfile profile = slow_profile();
  profile.copy_bytes_per_second = 50000;
  const auto plan = plan_memory(run, {24000, INT64_MAX}, profile);
  REQUIRE(plan);
  CHECK(plan->device_bytes <= 24000);
  CHECK(plan->component("dit").resident < 60);
  CHECK(plan->phase("train")->strategy > 0);
}

TEST_CASE("Profiles are known by name or read", "[planner]") {
  CHECK(known_profile("h200")->memory_bytes > int64_t{130} << 30);
  // Its attention is that of the kernel which runs there by default.
  const bool has_cudnn =
      ops::attention_kernel({.capability = 90, .dtype = at::kBFloat16, .head_dim = 128}) ==
      ops::AttentionKernel::kCudnn;
  CHECK((known_profile("h200")->attention_flops > 400e12) == has_cudnn);
  CHECK(known_profile("4090")->copy_bytes_per_second <
        known_profile("h200")->copy_bytes_per_second);
  CHECK(!known_profile("h201"));
  CHECK(!known_profile("rtx"));
  CHECK(known_profile("rtx3060")->name == "3060");
  for (const std::string& name : profile_names()) {
    const DeviceProfile profile = known_profile(name).value();
    INFO(name);
    CHECK(profile.memory_bytes > int64_t{7} << 30);
    CHECK(profile.flops_16 > profile.flops_32);
    CHECK(profile.attention_flops > 0);
    CHECK(profile.memory_bytes_per_second > 5 * profile.copy_bytes_per_second);
  }
  const std::string text =
      R"({"name": "a100", "memory_gib": 80, "tflops_16": 220, "tflops_32": 19,
          "attention_tflops": 160, "memory_gb_per_s": 1900, "copy_gb_per_s": 24})";
  const DeviceProfile profile = parse_profile(text, "a100.json");
  CHECK(profile.name == "a100");
  CHECK(profile.memory_bytes == int64_t{80} << 30);
  CHECK(profile.product_flops(at::kBFloat16) == 220e12);
  CHECK(profile.product_flops(at::kFloat) == 19e12);
  CHECK_THROWS_WITH(parse_profile("[1]", "p.json"), Catch::Contains("p.json"));
  CHECK_THROWS_WITH(parse_profile(R"({"memory_gib": 80})", "p"), Catch::Contains("tflops_16"));
  CHECK_THROWS_WITH(parse_profile(R"({"memory": 80})", "p"), Catch::Contains("\"memory\""));
}

TEST_CASE("What is kept beside a streamed block counts, and of a resident one it does not",
          "[planner]") {
  PlannedRun run;
  StoredComponent stored{.blocks = {10, 10, 10, 10}};
  run.components = {{.name = "dit", .storages = {stored}, .may_stream = true}};
  run.prefetch = 1;
  run.phases = {{.name = "train", .components = {"dit"}, .strategies = {Strategy{}}}};
  const auto bytes = [&](int64_t resident) {
    run.components[0].resident = resident;
    return plan_memory(run, {}, slow_profile())->component("dit").device_bytes;
  };
  REQUIRE(bytes(0) == 20);
  REQUIRE(bytes(4) == 40);
  run.components[0].storages[0].kept = {1, 2, 4, 8};
  REQUIRE(bytes(0) == 35);
  REQUIRE(bytes(4) == 40);
}

TEST_CASE("Times beyond all counting are the longest there is", "[planner]") {
  PlannedRun run;
  run.components = {{.name = "dit", .storages = {{.blocks = {10, 10}}}, .may_stream = true}};
  Strategy strategy{.seconds = 1e18};
  strategy.forward["dit"] = {1e18, 1e30};
  run.phases = {{.name = "train", .components = {"dit"}, .strategies = {strategy}, .passes = 1e30}};
  const auto plan = plan_memory(run, {}, slow_profile());
  REQUIRE(plan);
  REQUIRE(plan->seconds > 1e6);
  REQUIRE(plan->phases[0].seconds > 1e6);
}

// Two blocks, each a second forward and two backward.
PlannedRun exchanging_run() {
  PlannedRun run;
  PlannedComponent component{.name = "dit", .storages = {{.blocks = {40, 40}}}};
  Strategy step;
  step.forward["dit"] = {1.0, 1.0};
  step.backward["dit"] = {2.0, 2.0};
  run.components = {component};
  run.phases = {{.name = "train", .components = {"dit"}, .strategies = {step}}};
  run.prefetch = 1;
  return run;
}

double step_of(const PlannedRun& run) {
  return plan_memory(run, {}, slow_profile()).value().phases.front().seconds;
}

TEST_CASE("What is sent hides behind the blocks before, but for the last of it", "[planner]") {
  PlannedRun run = exchanging_run();
  Strategy& step = run.phases.front().strategies.front();
  step.sending_repeats = 1;
  const auto [first, second, expected] = GENERATE(table<double, double, double>({
      {0.5, 1.5, 6.5},  // the second block's while the first one computes, which ends last
      {0.5, 3.0, 7.5},  // nothing hides more than computing lasts
      {0.0, 0.0, 6.0},
  }));
  step.sends["dit"] = {first, second};
  CHECK(step_of(run) == Approx(expected));
  // The last of several passes sends.
  step.repeats = 3;
  CHECK(step_of(run) == Approx(2 * 6.0 + expected));
  const PhaseChoice phase = plan_memory(run, {}, slow_profile()).value().phases.front();
  CHECK(phase.exchanged_seconds == Approx(expected - 6.0));
  CHECK(phase.waited_seconds == 0);
}

TEST_CASE("What a step awaits comes in front of the blocks of its first pass", "[planner]") {
  PlannedRun run = exchanging_run();
  Strategy& step = run.phases.front().strategies.front();
  const auto [first, second, expected] = GENERATE(table<double, double, double>({
      {0.5, 0.5, 6.5},  // the second block's while the first one computes
      {0.5, 3.0, 8.5},  // nothing hides more than computing lasts
      {0.0, 0.0, 6.0},
  }));
  step.awaits["dit"] = {first, second};
  CHECK(step_of(run) == Approx(expected));
  // It is there for the passes behind the first one, of which the last one sends.
  step.repeats = 3;
  CHECK(step_of(run) == Approx(2 * 6.0 + expected));
  step.sends["dit"] = {0.5, 1.5};
  step.sending_repeats = 1;
  CHECK(step_of(run) == Approx(6.0 + expected + 6.5));
  step.sending_repeats = 3;
  CHECK(step_of(run) == Approx(expected + 0.5 + 2 * 6.5));
  const PhaseChoice phase = plan_memory(run, {}, slow_profile()).value().phases.front();
  CHECK(phase.exchanged_seconds == Approx(phase.seconds - 3 * 6.0));
}

TEST_CASE("Waiting for other ranks is told from waiting for copies", "[planner]") {
  PlannedRun run = exchanging_run();
  PlannedComponent& component = run.components.front();
  component.may_stream = true;
  component.resident = 0;
  component.others = Place::kHost;
  component.storages.front().blocks = {4000, 4000};  // copies of 4 s
  const auto phase = [&] { return plan_memory(run, {}, slow_profile()).value().phases.front(); };
  const double waited = phase().waited_seconds, seconds = phase().seconds;
  CHECK(waited > 0);
  CHECK(phase().exchanged_seconds == 0);
  Strategy& step = run.phases.front().strategies.front();
  step.sends["dit"] = {20.0, 20.0};
  step.sending_repeats = 1;
  CHECK(phase().waited_seconds == Approx(waited));
  CHECK(phase().exchanged_seconds == Approx(phase().seconds - seconds));
  CHECK(phase().exchanged_seconds > 20);
  // Copies have a line of their own: what is sent while they are waited for costs nothing.
  step.sends["dit"] = {0.5, 0.5};
  CHECK(phase().exchanged_seconds == 0);
  // Parts of blocks come from ranks, whatever lies where.
  step.sends.clear();
  component.shards = 2;
  component.resident.reset();
  component.storages.front().gathers = {4.0, 4.0};
  CHECK(phase().waited_seconds == 0);
  CHECK(phase().exchanged_seconds > 0);
}

TEST_CASE("Blocks that other ranks send take no host memory, and keep their part here",
          "[planner]") {
  PlannedRun run = exchanging_run();
  PlannedComponent& component = run.components.front();
  component.may_stream = true;
  component.shards = 4;
  component.others = Place::kDevice;
  component.storages.front().gathers = {0.5, 0.5};
  const MemoryPlan plan = plan_memory(run, {}, slow_profile()).value();
  CHECK(plan.component("dit").device_bytes == 2 * 10 + 2 * 40);
  CHECK(plan.host_bytes == 0);
  CHECK(step_of(run) == Approx(6.0));  // the next block comes while one computes
  component.storages.front().gathers = {5.0, 5.0};
  CHECK(step_of(run) == Approx(10.0));  // a pass begins with the block that the last one ended with
}

TEST_CASE("Of what processes have on the host together each counts its share", "[planner]") {
  PlannedRun run = exchanging_run();
  PlannedComponent& component = run.components.front();
  component.may_stream = true;
  component.resident = 0;
  component.others = Place::kHost;
  const int64_t alone = plan_memory(run, {}, slow_profile()).value().host_bytes;
  component.host_sharers = 4;
  const MemoryPlan plan = plan_memory(run, {}, slow_profile()).value();
  CHECK(alone == 2 * 40);
  CHECK(plan.host_bytes == 2 * 10);
  CHECK(plan.component("dit").host_bytes == 2 * 10);
}

TEST_CASE("Of divided blocks a part is counted, and slots", "[planner]") {
  PlannedComponent dit{.name = "dit"};
  dit.storages = {{.blocks = std::vector<int64_t>(8, 100), .outside = 10}};
  dit.shards = 4;
  Strategy strategy{.needs_all_blocks = false};
  strategy.forward["dit"] = strategy.backward["dit"] = std::vector<double>(8, 1.0);
  PlannedRun run;
  run.components = {dit};
  run.prefetch = 1;
  run.phases = {{.name = "train", .components = {"dit"}, .strategies = {strategy}}};
  const auto plan_within = [&](int64_t device_bytes) {
    return plan_memory(run, {.device_bytes = device_bytes, .host_bytes = 1000}, slow_profile());
  };
  const int64_t parts = 200, slots = 200, outside = 10, reserve = 7;

  const auto roomy = plan_within(reserve + outside + slots + parts);
  REQUIRE(roomy);
  CHECK(roomy->component("dit").others == Place::kDevice);
  CHECK(roomy->component("dit").resident == 0);
  CHECK(roomy->component("dit").device_bytes == outside + slots + parts);
  CHECK(roomy->component("dit").host_bytes == 0);

  const auto tight = plan_within(reserve + outside + slots);
  REQUIRE(tight);
  CHECK(tight->component("dit").others == Place::kHost);
  CHECK(tight->component("dit").device_bytes == outside + slots);
  CHECK(tight->component("dit").host_bytes == parts);
  CHECK_FALSE(plan_within(reserve + outside + slots - 1));
}

}  // namespace
}  // namespace atelier::memory
