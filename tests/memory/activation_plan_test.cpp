#include "memory/activation_plan.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "memory/activation_runner.h"
#include "memory/direct.h"
#include "memory/live_bytes.h"
#include "memory/toy_net.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using test::direct;
using test::Net;
using test::Train;
using Kind = ActivationBudget::Kind;

int64_t total_bytes(const std::vector<KeepChoice>& choices) {
  int64_t total = 0;
  for (const KeepChoice& choice : choices) total += choice.bytes * choice.count;
  return total;
}

// The best of all ways to keep some of `choices`, from `i` on.
KeepSolution brute_force(const std::vector<KeepChoice>& choices, int64_t budget, size_t i = 0) {
  if (i == choices.size()) return {};
  KeepSolution best;
  for (int64_t k = 0; k <= choices[i].count && k * choices[i].bytes <= budget; ++k) {
    KeepSolution with = brute_force(choices, budget - k * choices[i].bytes, i + 1);
    with.bytes += k * choices[i].bytes;
    with.picoseconds += k * choices[i].picoseconds;
    if (k == 0 || with.picoseconds > best.picoseconds ||
        (with.picoseconds == best.picoseconds && with.bytes < best.bytes))
      best = with;
  }
  return best;
}

// The most time that one kind of `count` runs saves when `movable` of them may offload one set of
// operators: all sets, all numbers of runs, all ways to keep some of the rest.
int64_t most_saved(const BlockCosts& costs, int64_t count, int64_t movable, int64_t room,
                   const OffloadLimits& limits) {
  int64_t best = 0;
  const auto window = static_cast<int64_t>(limits.bytes_per_second * costs.seconds);
  for (unsigned mask = 0; mask < 1u << costs.operators.size(); ++mask) {
    for (int64_t moving = 0; moving <= movable; ++moving) {
      std::vector<KeepChoice> choices;
      int64_t bytes = 0, saved = 0;
      for (size_t op = 0; op < costs.operators.size(); ++op) {
        const auto time = static_cast<int64_t>(std::llround(costs.operators[op].seconds * 1e12));
        const int64_t moved = (mask >> op & 1) != 0 ? moving : 0;
        choices.push_back({costs.operators[op].bytes, time, count - moved});
        bytes += moved > 0 ? costs.operators[op].bytes : 0;
        saved += moved * time;
      }
      if (bytes > window || bytes * moving > limits.host_bytes || 2 * bytes > room) continue;
      best = std::max(best, saved + brute_force(choices, room - 2 * bytes).picoseconds);
    }
  }
  return best;
}

// Bytes of the CPU that this thread holds, and the most it held.
class PeakBytes {
 public:
  PeakBytes()
      : counter_(std::make_shared<Counter>()),
        guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  int64_t now() const { return counter_->now; }
  int64_t peak() const { return counter_->peak; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    int64_t now = 0, peak = 0;
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

// A net with what its blocks cost: the first has no trained input. Times are made up, so that plans
// do not change from run to run.
struct MeasuredNet {
  Net net;
  RecomputeRunner runner;
  std::vector<std::shared_ptr<const BlockCosts>> runs;
  int64_t output_bytes = 0;

  explicit MeasuredNet(Train train, double dropout, int count = 5,
                       std::shared_ptr<Offloader> offloader = nullptr)
      : net(train, dropout, count), runner(direct, {}, {.offloader = std::move(offloader)}) {
    const auto first = std::make_shared<BlockCosts>(), others = std::make_shared<BlockCosts>();
    Tensors in = net.inputs;
    for (auto& block : net.blocks) {
      const auto& costs = runs.empty() ? first : others;
      in[0] = runner.run(*block, in, {}, costs)[0];
      runs.push_back(costs);
    }
    net.gradients_of(in[0]);
    for (const auto& costs : {first, others}) {
      for (size_t i = 0; i < costs->operators.size(); ++i)
        costs->operators[i].seconds = 1e-6 * static_cast<double>(3 + 5 * i % 7);
      costs->seconds = 50e-6;
    }
    output_bytes = static_cast<int64_t>(in[0].nbytes());
  }

  Tensor forward(const ActivationPlan& plan) {
    at::manual_seed(7);
    Tensors in = net.inputs;
    for (size_t i = 0; i < net.blocks.size(); ++i) {
      const ActivationPlan::Run& run = plan.runs[i];
      in[0] = (run.is_whole ? direct.run(*net.blocks[i], in)
                            : runner.run(*net.blocks[i], in, run.actions))[0];
    }
    return in[0];
  }

  // What a step allocates beside the activations of blocks: gradients of what is trained, and the
  // loss with what leads to it.
  int64_t bytes_beside() const {
    int64_t bytes = 2 * output_bytes + 1024;
    for (const Tensor& t : net.trained) bytes += static_cast<int64_t>(t.nbytes());
    return bytes;
  }
};

ActivationBudget of_bytes(int64_t bytes) {
  return {.kind = Kind::kBytes, .bytes = bytes};
}
ActivationBudget of_fraction(double fraction) {
  return {.kind = Kind::kFraction, .fraction = fraction};
}

}  // namespace

TEST_CASE("What is kept is the best of all ways, for every budget", "[plan]") {
  std::mt19937 random(3);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % limit); };
  for (int round = 0; round < 40; ++round) {
    std::vector<KeepChoice> choices;
    for (int i = 0; i < 4; ++i) choices.push_back({below(20), 1 + below(12), 1 + below(3)});
    int64_t before = 0;
    for (int64_t budget = 0; budget <= total_bytes(choices); ++budget) {
      const KeepSolution found = choose_kept(choices, budget);
      const KeepSolution best = brute_force(choices, budget);
      int64_t bytes = 0, picoseconds = 0;
      for (size_t i = 0; i < choices.size(); ++i) {
        bytes += found.kept[i] * choices[i].bytes;
        picoseconds += found.kept[i] * choices[i].picoseconds;
      }
      REQUIRE(picoseconds == best.picoseconds);
      REQUIRE(bytes == best.bytes);
      REQUIRE((found.bytes == bytes && found.picoseconds == picoseconds));
      REQUIRE(bytes >= before);
      before = bytes;
    }
  }
}

TEST_CASE("Sixty blocks of twelve outputs take few steps and use their budget", "[plan]") {
  std::vector<KeepChoice> choices;
  std::mt19937_64 random(5);
  for (int i = 0; i < 12; ++i)  // bytes without a common divisor
    choices.push_back({40'000'001 + static_cast<int64_t>(random() % 90'000'000),
                       1'000'000'000 + static_cast<int64_t>(random() % 2'000'000'000), 60});
  std::sort(choices.begin(), choices.end(), [](const KeepChoice& a, const KeepChoice& b) {
    return static_cast<double>(a.picoseconds) / static_cast<double>(a.bytes) >
           static_cast<double>(b.picoseconds) / static_cast<double>(b.bytes);
  });
  const int64_t total = total_bytes(choices);
  int64_t before = 0;
  for (int i = 0; i <= 20; ++i) {
    const int64_t budget = total / 20 * i;
    const KeepSolution found = choose_kept(choices, budget);
    CHECK(found.steps <= kMostPlanSteps);
    CHECK(found.bytes <= budget);
    CHECK(found.bytes >= before);
    before = found.bytes;
    // No way saves more than the densest bytes first, with a part of the last output.
    double bound = 0;
    int64_t left = budget;
    for (const KeepChoice& choice : choices) {
      const int64_t bytes = std::min(left, choice.bytes * choice.count);
      bound += static_cast<double>(choice.picoseconds) * static_cast<double>(bytes) /
               static_cast<double>(choice.bytes);
      left -= bytes;
    }
    CHECK(static_cast<double>(found.picoseconds) >= 0.98 * bound);
  }
}

TEST_CASE("With offloading the plan is the best of all ways", "[plan]") {
  std::mt19937 random(11);
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % limit); };
  int offloaded = 0;
  for (int round = 0; round < 60; ++round) {
    auto costs = std::make_shared<BlockCosts>();
    for (int i = 0; i < 3; ++i)
      costs->operators.push_back({"op", 1 + below(9), 1e-12 * static_cast<double>(1 + below(12))});
    costs->seconds = 60e-12;
    costs->always_recomputed = round % 2 == 0;
    const int64_t length = 4 + below(2), count = length - (round % 2);
    const std::vector<std::shared_ptr<const BlockCosts>> runs(static_cast<size_t>(length), costs);
    const OffloadLimits limits = {.host_bytes = below(30),
                                  .bytes_per_second = static_cast<double>(1 + below(20)) / 60e-12};
    int64_t total = 0, before = 0;
    for (const OperatorCosts& op : costs->operators) total += op.bytes * count;
    for (int64_t room = 0; room < total; ++room) {
      // Working and held bytes are 0: the budget is all for outputs.
      const ActivationPlan plan = plan_activations(
          runs, of_fraction((static_cast<double>(room) + 0.5) / static_cast<double>(total)), 0, 0,
          0, limits);
      const double saved = static_cast<double>(count) * 60e-12 - plan.extra_seconds;
      CAPTURE(round, room, limits.host_bytes, limits.bytes_per_second);
      REQUIRE(std::llround(saved * 1e12) == most_saved(*costs, count, length - 2, room, limits));
      REQUIRE(plan.peak_bytes <= room);
      REQUIRE(plan.peak_bytes >= before);
      REQUIRE(plan.offloaded_bytes <= limits.host_bytes);
      offloaded += plan.offloaded_bytes > 0;
      before = plan.peak_bytes;
      // The last two runs do not offload, and what a run sends fits into its window.
      for (size_t i = 0; i < runs.size(); ++i) {
        int64_t bytes = 0;
        for (size_t op = 0; op < plan.runs[i].actions.size(); ++op)
          bytes += plan.runs[i].actions[op] == Action::kOffload ? costs->operators[op].bytes : 0;
        REQUIRE(bytes * 2 <= plan.moving_bytes);
        REQUIRE((bytes == 0 || i + 2 < runs.size()));
        REQUIRE(static_cast<double>(bytes) <= limits.bytes_per_second * costs->seconds * 1.001);
      }
    }
  }
  CHECK(offloaded > 100);
}

TEST_CASE("Kinds of runs share the host's memory, and offload the same in each of theirs",
          "[plan]") {
  const auto make = [](int64_t bytes) {
    auto costs = std::make_shared<BlockCosts>();
    costs->operators = {{"linear", bytes, 1e-6}, {"attention", 2 * bytes, 9e-6}};
    costs->seconds = 20e-6;
    return costs;
  };
  const auto large = make(100), small = make(30);
  const std::vector<std::shared_ptr<const BlockCosts>> runs = {large, small, large, small, large,
                                                               small, large, small, large};
  for (int64_t host : {0, 90, 200, 500, 900, 5000}) {
    const OffloadLimits limits = {.host_bytes = host, .bytes_per_second = 250 / 20e-6};
    const ActivationPlan plan = plan_activations(runs, of_fraction(0.5), 0, 0, 0, limits);
    const ActivationPlan without = plan_activations(runs, of_fraction(0.5), 0);
    CHECK(plan.offloaded_bytes <= host);
    if (host >= 500) CHECK(plan.offloaded_bytes > 0);
    CHECK(plan.extra_seconds <= without.extra_seconds);
    CHECK(plan.peak_bytes <= (4 * 300 + 4 * 90) / 2);
    int64_t offloaded = 0;
    for (size_t kind : {0, 1}) {
      std::set<ops::ActionPlan> moved;
      for (size_t i = kind; i + 1 < runs.size(); i += 2) {
        ops::ActionPlan actions;
        for (size_t op = 0; op < 2; ++op) {
          const bool moves = plan.runs[i].actions[op] == Action::kOffload;
          if (moves) actions.push_back(static_cast<Action>(op));
          offloaded += moves ? runs[i]->operators[op].bytes : 0;
        }
        if (!actions.empty()) moved.insert(actions);
      }
      CHECK(moved.size() <= 1);
    }
    CHECK(offloaded == plan.offloaded_bytes);
  }
}

TEST_CASE("Measured bytes of an operator are those that keeping it holds", "[plan]") {
  MeasuredNet measured(Train::kAdapters, 0, 3);
  REQUIRE(measured.runs[1]->operators.size() == test::kOperators);
  ActivationPlan plan;
  plan.runs.resize(3);
  const auto held = [&] {
    PeakBytes bytes;
    const Tensor y = measured.forward(plan);
    return bytes.now();
  };
  const int64_t nothing = held();
  for (size_t op = 0; op < test::kOperators; ++op) {
    plan.runs[1].actions.assign(test::kOperators, Action::kRecompute);
    plan.runs[1].actions[op] = Action::kKeep;
    CHECK(held() - nothing == measured.runs[1]->operators[op].bytes);
  }
  plan.runs[1].actions.clear();
  plan.runs[1].is_whole = true;
  const int64_t whole = held() - nothing + measured.output_bytes;
  CHECK(whole <= measured.runs[1]->whole_bytes);
  CHECK(whole > measured.runs[1]->whole_bytes * 9 / 10);
}

TEST_CASE("Peak follows the budget: never above it, and never less for more", "[plan]") {
  for (const auto& [train, dropout] : {std::pair{Train::kAdapters, 0.0},
                                       {Train::kAdapters, 0.1},
                                       {Train::kAll, 0.0},
                                       {Train::kAll, 0.1}}) {
    MeasuredNet measured(train, dropout);
    const Tensors want = measured.net.step(direct);
    const int64_t least = plan_activations(measured.runs, of_fraction(0), 0).peak_bytes;
    const int64_t most = plan_activations(measured.runs, {}, 0).peak_bytes;
    REQUIRE(least < most);
    int64_t before = 0, kept_before = -1, held_with_nothing = 0, different = 0;
    for (int i = 0; i <= 20; ++i) {
      const int64_t budget = least + (most - least) * i / 20;
      const ActivationPlan plan = plan_activations(measured.runs, of_bytes(budget), 0);
      CHECK_FALSE(plan.is_over_budget);
      CHECK(plan.peak_bytes <= budget);
      PeakBytes bytes;
      const Tensor y = measured.forward(plan);
      if (i == 0) held_with_nothing = bytes.now() - plan.kept_bytes;
      if (plan.num_recomputed > 0) CHECK(bytes.now() - plan.kept_bytes == held_with_nothing);
      CHECK(test::same_bits(measured.net.gradients_of(y), want));
      CAPTURE(i, budget, plan.kept_bytes, plan.num_recomputed);
      CHECK(bytes.peak() <= budget + measured.bytes_beside());
      // Where all runs are whole no block is there twice: in a net this small that is less.
      if (plan.num_recomputed > 0) CHECK(bytes.peak() >= before);
      different += plan.kept_bytes != kept_before;
      before = bytes.peak();
      kept_before = plan.kept_bytes;
    }
    CHECK(different > 10);
  }
}

TEST_CASE("Operators whose values no gradient reads are found by trying", "[plan]") {
  for (double dropout : {0.0, 0.1}) {
    MeasuredNet adapters(Train::kAdapters, dropout, 3), all(Train::kAll, dropout, 3);
    for (const auto& costs : adapters.runs) {
      REQUIRE(costs->knows_unread);
      // The first of the residuals' last products is read by the norm behind it.
      for (size_t op = 0; op < test::kOperators; ++op)
        CHECK(costs->operators[op].is_unread == (op == test::kOperators - 1));
    }
    for (const auto& costs : all.runs) {
      REQUIRE(costs->knows_unread);
      for (const OperatorCosts& op : costs->operators) CHECK_FALSE(op.is_unread);
    }
    const ActivationPlan plan = plan_activations(adapters.runs, of_fraction(0.5), 0);
    CHECK(plan.runs[0].actions.back() == Action::kSkip);
    const Tensors want = adapters.net.step(direct);
    CHECK(test::same_bits(adapters.net.gradients_of(adapters.forward(plan)), want));
    // A skip that is wrong is seen: the gate is trained, and its gradient is NaN.
    ActivationPlan wrong = plan_activations(all.runs, of_fraction(0.5), 0);
    wrong.runs[1].actions.back() = Action::kSkip;
    const Tensors grads = all.net.gradients_of(all.forward(wrong));
    CHECK(std::any_of(grads.begin(), grads.end(),
                      [](const Tensor& t) { return t.isnan().any().item<bool>(); }));
  }
}

TEST_CASE("Values that are only compared count as read", "[plan]") {
  // All values are below 0, and so is NaN for a comparison: the gradient is 0 with either.
  struct Relu : Block {
    nn::Linear layer{this, "layer", 4, 4, /*bias=*/false};
    explicit Relu(bool compares_) : Block(nullptr, "relu"), compares(compares_) {
      layer.weight->set(at::full({4, 4}, -1.0));
    }
    bool compares;
    std::string_view kind() const override { return "relu"; }
    Tensors forward(const Tensors& in) override {
      const Tensor y = layer.forward(in[0]);
      return {compares ? in[0] + at::relu(y) : in[0] + y};
    }
  };
  for (bool compares : {true, false}) {
    Relu block(compares);
    RecomputeRunner runner(direct);
    const auto costs = std::make_shared<BlockCosts>();
    const Tensor x = test::trained(at::rand({3, 4}) + 0.1);
    const Tensor y = runner.run(block, {x}, {}, costs)[0];
    torch::autograd::grad({y.sum()}, {x});
    REQUIRE(costs->knows_unread);
    CHECK(costs->operators[0].is_unread == !compares);
  }
}

TEST_CASE("A plan keeps late runs first, the last one whole, and all when they fit", "[plan]") {
  auto costs = std::make_shared<BlockCosts>();
  costs->operators = {{"linear", 100, 2e-6}, {"attention", 60, 9e-6}};
  costs->seconds = 12e-6;
  costs->held_bytes = 10;
  costs->whole_bytes = 300;
  costs->working_bytes = 400;
  const std::vector<std::shared_ptr<const BlockCosts>> runs(4, costs);
  // Outputs of four runs, the working set of one and the gradient that comes to it.
  const int64_t least = 4 * 10 + 400 + 10;
  const ActivationPlan plan = plan_activations(runs, of_bytes(least + 130), 0);
  CHECK(plan.kept_bytes == 120);
  CHECK(plan.peak_bytes == least + 120);
  CHECK(plan.num_recomputed == 3);
  CHECK(plan.runs[3].is_whole);
  CHECK(plan.extra_seconds == Approx(3 * 12e-6 - 2 * 9e-6));
  const ops::ActionPlan nothing(2, Action::kRecompute);
  const ops::ActionPlan attention = {Action::kRecompute, Action::kKeep};
  CHECK((plan.runs[0].actions == nothing));
  CHECK((plan.runs[1].actions == attention));
  CHECK((plan.runs[2].actions == attention));

  const int64_t whole = 4 * 300 + 100 + 10;
  CHECK(plan_activations(runs, of_bytes(whole), 0).num_recomputed == 0);
  CHECK(plan_activations(runs, of_bytes(whole - 1), 0).kept_bytes == 3 * 160);
  CHECK(plan_activations(runs, {.kind = Kind::kAuto}, whole).num_recomputed == 0);
  CHECK(plan_activations(runs, {.kind = Kind::kAuto}, least).kept_bytes == 0);
  CHECK(plan_activations(runs, of_fraction(1), 0).kept_bytes == 3 * 160);
  CHECK(plan_activations(runs, of_fraction(0.5), 0).kept_bytes <= 3 * 80);
  CHECK(plan_activations(runs, {}, 0).num_recomputed == 0);
  // After two runs that keep 200 bytes in all.
  const int64_t rest = 200 + 2 * 10 + 2 * 300 + 400 + 10;
  CHECK(plan_activations(runs, of_bytes(rest), 0, 2, 200).num_recomputed == 0);
  CHECK(plan_activations(runs, of_bytes(least + 200), 0, 2, 200).kept_bytes == 200);
  CHECK(plan_activations(runs, of_bytes(least + 310), 0, 2, 200).kept_bytes == 260);
  CHECK(plan_activations(runs, of_bytes(least + 199), 0, 2, 200).is_over_budget);
  const ActivationPlan tight = plan_activations(runs, of_bytes(least - 1), 0);
  CHECK(tight.is_over_budget);
  CHECK(tight.kept_bytes == 0);
}

TEST_CASE("With offloading peak stays within the budget, and bytes equal the plan's", "[plan]") {
  for (const double rate : {0.0, 200e6}) {  // as fast as memory, and so that copies lag
    const auto transfer = make_simulated_device({.bytes_per_second = rate, .poison = true});
    const auto offloader = std::make_shared<Offloader>(*transfer, int64_t{1} << 30);
    for (const auto& [train, dropout] : {std::pair{Train::kAdapters, 0.1}, {Train::kAll, 0.0}}) {
      MeasuredNet measured(train, dropout, 8, offloader);
      const Tensors want = measured.net.step(direct);
      const int64_t least = plan_activations(measured.runs, of_fraction(0), 0).peak_bytes;
      const int64_t most = plan_activations(measured.runs, {}, 0).peak_bytes;
      const OffloadLimits limits = {.host_bytes = offloader->host_bytes(),
                                    .bytes_per_second = 100e6};  // 5 kB a block
      int64_t planned = 0, held_with_nothing = -1;
      int offloads = 0;
      for (int i = 0; i <= 20; ++i) {
        const int64_t budget = least + (most - least) * i / 20;
        const ActivationPlan plan =
            plan_activations(measured.runs, of_bytes(budget), 0, 0, 0, limits);
        CHECK(plan.peak_bytes <= budget);
        CHECK(plan.peak_bytes >= planned);
        planned = plan.peak_bytes;
        offloads += plan.offloaded_bytes > 0;
        const int64_t sent = offloader->stats().sent_bytes;
        LiveBytes bytes(at::kCPU);
        const Tensor y = measured.forward(plan);
        CHECK(offloader->stats().sent_bytes - sent == plan.offloaded_bytes);
        const Tensor last = at::zeros({1});  // copies that leave do so one after another
        transfer->wait(transfer->copy_out(last, at::zeros({1})));
        const int64_t held = bytes.now() - static_cast<int64_t>(last.nbytes());
        if (held_with_nothing < 0) held_with_nothing = held - plan.kept_bytes;
        if (plan.num_recomputed > 0) CHECK(held - plan.kept_bytes == held_with_nothing);
        CHECK(test::same_bits(measured.net.gradients_of(y), want));
        CAPTURE(i, budget, plan.kept_bytes, plan.moving_bytes);
        CHECK(bytes.peak() <= budget + measured.bytes_beside());
      }
      CHECK(offloads > 3);
    }
    const Offloader::Stats stats = offloader->stats();
    CHECK(stats.brought_bytes == stats.sent_bytes);
  }
}

TEST_CASE("Training within a budget gives the bits of keeping everything", "[plan]") {
  for (Train train : {Train::kAdapters, Train::kAll}) {
    Net net(train, 0.1, 4);
    const Tensors want = net.step(direct);
    for (int i = 0; i <= 20; ++i) {
      int64_t plans = 0;
      ActivationRunner runner(direct, of_fraction(i / 20.0), at::kCPU,
                              [&](const ActivationPlan&) { ++plans; });
      int equal = 0;
      for (int pass = 0; pass < 3; ++pass) {
        runner.begin_pass();
        equal += test::same_bits(net.step(runner), want);
      }
      CHECK(equal == 3);
      CHECK(plans == 1);
    }
    const auto transfer = make_simulated_device({.poison = true});
    for (const char* text : {"full", "0.3", "0.05MB", "0.1MB"}) {
      const auto offloader = std::make_shared<Offloader>(*transfer, int64_t{1} << 20);
      ActivationRunner runner(direct, parse_activation_budget(text), at::kCPU, {}, offloader);
      for (int pass = 0; pass < 4; ++pass) {
        runner.begin_pass();
        CHECK(test::same_bits(net.step(runner), want));
      }
    }
    for (const char* text : {"auto", "none", "full", "0.01MB", "1MiB"}) {
      ActivationRunner runner(direct, parse_activation_budget(text), at::kCPU);
      for (int pass = 0; pass < 3; ++pass) {
        runner.begin_pass();
        CHECK(test::same_bits(net.step(runner), want));
      }
    }
  }
}

TEST_CASE("A pass may go on otherwise than the one that it began like", "[plan]") {
  Net longer(Train::kAdapters, 0.1, 5);
  const auto step = [&](BlockRunner& runner, size_t count, int64_t rows) {
    at::manual_seed(7);
    Tensors in = longer.inputs;
    for (size_t i = 0; i < count; ++i) {
      if (i == 2 && rows != 11) {  // another shape from here on
        in[0] = in[0].narrow(0, 0, rows);
        in[2] = in[2].narrow(0, 0, rows);
        in[3] = in[3].narrow(0, 0, rows);
        in[4] = Segments({4, rows - 4}).tensor();
      }
      in[0] = runner.run(*longer.blocks[i], in)[0];
    }
    return torch::autograd::grad({in[0].square().sum()}, longer.trained, {}, false, false, true);
  };
  for (const char* text : {"0.5", "0.04MB", "1MB"}) {
    std::vector<ActivationPlan> plans;
    ActivationRunner runner(direct, parse_activation_budget(text), at::kCPU,
                            [&](const ActivationPlan& plan) { plans.push_back(plan); });
    for (int round = 0; round < 3; ++round) {
      for (const auto& [count, rows] : {std::pair<size_t, int64_t>{5, 11}, {3, 11}, {5, 8}}) {
        runner.begin_pass();
        CHECK(test::same_bits(step(runner, count, rows), step(direct, count, rows)));
      }
    }
    CHECK(plans.size() >= 2);
    // A pass that is given up half way leaves nothing behind.
    runner.begin_pass();
    longer.forward(runner).reset();
    runner.begin_pass();
    CHECK(test::same_bits(step(runner, 5, 11), step(direct, 5, 11)));
  }
}

TEST_CASE("Blocks whose weights leave, and blocks with sinks, are recomputed whatever the budget",
          "[plan]") {
  Net resident(Train::kAdapters, 0.1, 4), streamed(Train::kAdapters, 0.1, 4, /*leased=*/true);
  Net all(Train::kAll, 0.1, 4), sinking(Train::kAll, 0.1, 4, /*leased=*/true);
  test::HoldingRunner holding;
  test::guard_draws(streamed, holding);
  const Tensors want = resident.step(direct);
  Tensors want_all = all.step(direct);
  want_all.resize(want_all.size() - 2);  // without the inputs'
  for (const char* text : {"none", "full", "0.5", "1", "auto", "0.05MB", "1GB"}) {
    ActivationPlan plan;
    ActivationRunner runner(holding, parse_activation_budget(text), at::kCPU,
                            [&](const ActivationPlan& found) { plan = found; });
    CHECK(runner.hold(*streamed.blocks[0]) != nullptr);
    for (int pass = 0; pass < 3; ++pass) {
      runner.begin_pass();
      CHECK(test::same_bits(streamed.step(runner), want));
    }
    for (const ActivationPlan::Run& run : plan.runs) CHECK_FALSE(run.is_whole);
    CHECK((plan.runs.empty() || plan.num_recomputed == 4));
    CHECK(holding.holds == 0);

    ActivationRunner in_place(direct, parse_activation_budget(text), at::kCPU);
    for (int pass = 0; pass < 3; ++pass) {
      sinking.visit_weights([](const std::string&, Weight& weight) {
        weight.state().set_sink(std::make_shared<test::SummingSink>());
      });
      in_place.begin_pass();
      sinking.step(in_place);
      CHECK(test::same_bits(sinking.sunk(), want_all));
    }
    CHECK(test::LeasedStore::live == 0);
  }
}

TEST_CASE("Where weights leave, the plan that keeps everything keeps operators", "[plan]") {
  auto costs = std::make_shared<BlockCosts>();
  costs->operators = {{"linear", 100, 2e-6}, {"attention", 60, 9e-6}};
  costs->seconds = 12e-6;
  costs->held_bytes = 10;
  costs->whole_bytes = 300;
  costs->working_bytes = 400;
  costs->always_recomputed = true;
  const std::vector<std::shared_ptr<const BlockCosts>> runs(4, costs);
  const int64_t least = 4 * 10 + 400 + 10, all = least + 4 * 160;
  for (const ActivationPlan& plan :
       {plan_activations(runs, of_bytes(all), 0), plan_activations(runs, {}, 0)}) {
    CHECK(plan.peak_bytes == all);
    CHECK(plan.kept_bytes == 4 * 160);
    CHECK(plan.num_recomputed == 4);
    CHECK(plan.extra_seconds == Approx(4 * 1e-6));
  }
  const ActivationPlan some = plan_activations(runs, of_bytes(all - 1), 0);
  CHECK(some.kept_bytes == 4 * 160 - 100);
  CHECK_FALSE(some.runs[3].is_whole);
  CHECK((some.runs[3].actions == ops::ActionPlan(2, Action::kKeep)));
  // The last of the runs that stay is whole.
  auto stays = std::make_shared<BlockCosts>(*costs);
  stays->always_recomputed = false;
  const std::vector<std::shared_ptr<const BlockCosts>> mixed = {costs, stays, costs, stays};
  const ActivationPlan plan = plan_activations(mixed, of_fraction(0), 0);
  CHECK(plan.num_recomputed == 3);
  CHECK(plan.runs[3].is_whole);
  const ActivationPlan most = plan_activations(mixed, {}, 0);
  CHECK(most.num_recomputed == 2);
  CHECK((most.runs[1].is_whole && most.runs[3].is_whole && !most.runs[2].is_whole));
  CHECK(most.peak_bytes == 2 * 170 + 2 * 300 + 400 + 10);
}

TEST_CASE("Budgets are read as they are written", "[plan]") {
  CHECK(parse_activation_budget("auto").kind == Kind::kAuto);
  CHECK(parse_activation_budget("none").kind == Kind::kNone);
  for (const auto& [text, fraction] :
       {std::pair{"full", 0.0}, {"0", 0.0}, {"0.25", 0.25}, {"1", 1.0}, {"1.0", 1.0}}) {
    const ActivationBudget budget = parse_activation_budget(text);
    CHECK(budget.kind == Kind::kFraction);
    CHECK(budget.fraction == fraction);
  }
  for (const auto& [text, bytes] : {std::pair{"12GiB", int64_t{12} << 30},
                                    {"1.5GB", 1'500'000'000},
                                    {"800MiB", int64_t{800} << 20},
                                    {"800MB", 800'000'000}}) {
    const ActivationBudget budget = parse_activation_budget(text);
    CHECK(budget.kind == Kind::kBytes);
    CHECK(budget.bytes == bytes);
  }
  for (const char* text : {"", "some", "2", "-0.5", "nan", "1.5", "12", "12 GiB", "12gib", "0GB",
                           "-1GB", "GiB", "1e30GB", "0.5x", "12GiBs"})
    CHECK(test::mentions(test::error_of([&] { parse_activation_budget(text); }), "budget"));
  CHECK(available_bytes(at::kCPU) > 0);
}

}  // namespace atelier::memory
