#include "memory/recompute.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "memory/direct.h"
#include "memory/toy_net.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using ops::ActionPlan;
using test::direct;
using test::kHeads;
using test::kMlp;
using test::kOperators;
using test::kWidth;
using test::Net;
using test::ToyBlock;
using test::Train;

ActionPlan plan_of(unsigned mask) {
  ActionPlan plan;
  for (int i = 0; i < kOperators; ++i) {
    plan.push_back(mask >> i & 1 ? Action::kKeep : Action::kRecompute);
  }
  return plan;
}

RecomputeRunner runner_with(ActionPlan plan) {
  return RecomputeRunner(direct, [plan](const Block&) { return plan; });
}

struct FunctionBlock : Block {
  std::function<Tensors(const Tensors&)> function;
  explicit FunctionBlock(std::function<Tensors(const Tensors&)> f)
      : Block(nullptr, "function"), function(std::move(f)) {}
  std::string_view kind() const override { return "function"; }
  Tensors forward(const Tensors& in) override { return function(in); }
};

}  // namespace

TEST_CASE("Recomputed gradients equal kept ones to the bit, for every plan", "[recompute]") {
  for (Train train : {Train::kAdapters, Train::kAll}) {
    for (double dropout : {0.0, 0.1}) {
      Net net(train, dropout);
      const Tensors want = net.step(direct);
      REQUIRE(want.size() == (train == Train::kAll ? 2 * 15 + 2 : 2 * 12));
      int equal = 0;
      for (unsigned mask = 0; mask < 1u << kOperators; ++mask) {
        RecomputeRunner runner = runner_with(plan_of(mask));
        equal += test::same_bits(net.step(runner), want);
      }
      CHECK(equal == 1 << kOperators);
    }
  }
}

TEST_CASE(
    "Cross attention, its bias, sets of keys and convolutions over time are recomputed to the bit",
    "[recompute]") {
  at::manual_seed(5);
  const Segments q_rows({7, 5}), k_rows({3, 6});
  const ops::AttentionOptions regions{.query_sees = at::randint(1, 4, {12}, at::kLong),
                                      .key_groups = at::randint(1, 4, {9}, at::kLong)};
  nn::Conv3d conv(nullptr, "conv", 4, 4, {3, 3, 3}, {.padding = {0, 1, 1}});
  conv.weight->set(at::randn(conv.weight->sizes()));
  conv.bias->set(at::randn({4}));
  FunctionBlock block([&](const Tensors& in) -> Tensors {
    const Tensor q = ops::layer_norm(in[0], in[3], in[3]).view({12, 2, 4});
    const Tensor k = in[1].view({9, 2, 4});
    ops::AttentionOptions biased;
    biased.offset_bias = in[2];
    Tensor x = ops::attention(q, k, k, q_rows, k_rows, biased);
    x = x + ops::attention(q, k, k, q_rows, k_rows, regions);
    x = x + ops::attention(q, k, k, q_rows, k_rows, {});
    const std::vector<ops::KeySet> sets = {
        {k, k, k_rows}, {q, q, q_rows, regions.query_sees, regions.query_sees, 0.5}};
    x = x + ops::attention(q, q_rows, sets);
    return {conv.forward(x.view({1, 4, 3, 4, 2})).square()};
  });
  const Tensors inputs = {test::trained(at::randn({12, 8})), test::trained(at::randn({9, 8})),
                          test::trained(at::randn({2, 12})), test::trained(at::randn({8}))};
  const Tensors want = test::gradients(direct.run(block, inputs), inputs);
  for (unsigned mask = 0; mask < 1u << 6; ++mask) {
    RecomputeRunner runner = runner_with(plan_of(mask));
    CHECK(test::same_bits(test::gradients(runner.run(block, inputs), inputs), want));
  }
}

TEST_CASE("Lent weights are given back by every operator, both times", "[recompute]") {
  Net net(Train::kAdapters, 0.1, 2, /*leased=*/true);
  // The norm of q and k is plain work on a drawn weight; it holds that weight in the plain run.
  Net resident(Train::kAdapters, 0.1);
  const Tensors want = resident.step(direct);
  for (unsigned mask : {0u, 0xffu, 0b10110010u}) {
    RecomputeRunner runner = runner_with(plan_of(mask));
    at::manual_seed(7);
    const Tensor y = net.forward(runner);
    CHECK(test::LeasedStore::live == 0);
    CHECK(test::same_bits(net.gradients_of(y), want));
    CHECK(test::LeasedStore::live == 0);
  }
}

TEST_CASE("Gradients of weights that are trained elsewhere go to their sinks, to the bit",
          "[recompute]") {
  Net resident(Train::kAll, 0.1), away(Train::kAll, 0.1, 2, /*leased=*/true);
  REQUIRE(away.trained.size() == 2);  // the inputs
  test::HoldingRunner holding;
  test::guard_draws(away, holding);
  Tensors want = resident.step(direct);
  const Tensors inputs(want.end() - 2, want.end());
  want.resize(want.size() - 2);
  for (unsigned mask : {0u, 0xffu, 0b10110010u}) {
    away.visit_weights([](const std::string&, Weight& weight) {
      weight.state().set_sink(std::make_shared<test::SummingSink>());
    });
    RecomputeRunner runner(holding, [mask](const Block&) { return plan_of(mask); });
    CHECK(runner.hold(*away.blocks[0]) != nullptr);
    const int before = holding.ever;
    CHECK(test::same_bits(away.step(runner), inputs));
    CHECK(test::same_bits(away.sunk(), want));
    CHECK(holding.ever - before == 2 * (1 + 2));  // each block: its run, and the replay in a hold
    CHECK(holding.holds == 0);
    CHECK(test::LeasedStore::live == 0);
    away.visit_weights(
        [](const std::string&, Weight& weight) { CHECK_FALSE(weight.state().leaf().defined()); });
  }
}

TEST_CASE("Who asks is told when the gradients of a block with sinks have been given",
          "[recompute]") {
  Net net(Train::kAll, 0, 2, /*leased=*/true);
  net.visit_weights([](const std::string&, Weight& weight) {
    weight.state().set_sink(std::make_shared<test::SummingSink>());
  });
  const auto num_given = [&] { return std::ranges::count_if(net.sunk(), &Tensor::defined); };
  std::vector<std::pair<const Block*, int64_t>> told;  // and how many gradients were there
  RecomputeOptions options;
  options.on_gradients = [&](const Block& block) { told.emplace_back(&block, num_given()); };
  RecomputeRunner runner(direct, {}, options);
  for (Tensor& input : net.inputs) input = input.detach();
  const Tensor y = net.forward(runner);
  CHECK(told.empty());
  torch::autograd::backward({(y * net.target).sum()}, {});
  const auto all = std::ssize(net.sunk());
  CHECK(told == std::vector<std::pair<const Block*, int64_t>>{{net.blocks[1].get(), all / 2},
                                                              {net.blocks[0].get(), all}});
}

TEST_CASE("Sinks are enough to train, and sum over runs and passes", "[recompute]") {
  Net resident(Train::kAll, 0), away(Train::kAll, 0, 2, /*leased=*/true);
  for (Net* net : {&resident, &away}) {
    for (Tensor& input : net->inputs) input = input.detach();
  }
  Tensors leaves(resident.trained.begin(), resident.trained.end() - 2);
  const Tensor first = resident.forward(direct), second = resident.forward(direct);
  const Tensors want = torch::autograd::grad({((first + 2 * second) * resident.target).sum()},
                                             leaves, {}, false, false, true);
  RecomputeRunner runner(direct);
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor one = away.forward(runner), two = away.forward(runner);
    REQUIRE(one.requires_grad());
    torch::autograd::backward({((one + 2 * two) * away.target).sum()}, {});
  }
  Tensors twice;
  for (const Tensor& t : want) twice.push_back(2 * t);
  CHECK(test::error(away.sunk(), twice) < 1e-6);
  {
    at::NoGradGuard no_grad;
    CHECK_FALSE(away.forward(runner).requires_grad());
  }
}

TEST_CASE("An error takes lent leaves and holds back", "[recompute]") {
  Net net(Train::kAll, 0.1, 2, /*leased=*/true);
  test::HoldingRunner holding;
  RecomputeRunner runner(holding);
  bool armed = false;
  net.blocks[0]->probe = [&] {
    if (armed) throw Error(ErrorCode::kCancelled, "stop");
  };
  at::manual_seed(7);
  const Tensor y = net.forward(runner);
  armed = true;
  CHECK(test::error_of([&] { net.gradients_of(y); }).code() == ErrorCode::kCancelled);
  CHECK(holding.holds == 0);
  CHECK(test::LeasedStore::live == 0);
  net.visit_weights(
      [](const std::string&, Weight& weight) { CHECK_FALSE(weight.state().leaf().defined()); });
}

TEST_CASE("Kept bytes are the block's outputs and what the plan names", "[recompute]") {
  Net net(Train::kAdapters, 0);
  const int64_t rows = 11, floats = 4, blocks = 2;
  auto linear = [&](int64_t out) { return floats * rows * (out + 3); };
  // The log-sum-exp of each sample has a number a row and head.
  const int64_t bytes_of[kOperators] = {
      floats * 2 * 6 * kWidth,           linear(kWidth), linear(kWidth), linear(kWidth),
      floats * rows * (kWidth + kHeads), linear(kWidth), linear(kMlp),   linear(kWidth)};
  for (unsigned mask = 0; mask < 1u << kOperators; ++mask) {
    RecomputeRunner runner = runner_with(plan_of(mask));
    test::Bytes bytes;
    Tensor y = net.forward(runner);
    int64_t expected = blocks * floats * rows * kWidth;
    for (int i = 0; i < kOperators; ++i) {
      if (mask >> i & 1) expected += blocks * bytes_of[i];
    }
    CHECK(bytes.now() == expected);
    y.reset();
    CHECK(bytes.now() == 0);
  }
}

TEST_CASE("A plan that skips the last product changes no gradient of adapters", "[recompute]") {
  Net net(Train::kAdapters, 0);
  const Tensors want = net.step(direct);
  ActionPlan plan = plan_of(0);
  plan.back() = Action::kSkip;
  RecomputeRunner runner = runner_with(plan);
  CHECK(test::same_bits(net.step(runner), want));
  // Where the gate is trained its gradient reads the product: a wrong plan is seen.
  Net all(Train::kAll, 0);
  RecomputeRunner wrong = runner_with(plan);
  const Tensors grads = all.step(wrong);
  CHECK(std::any_of(grads.begin(), grads.end(),
                    [](const Tensor& t) { return t.isnan().any().item<bool>(); }));
}

TEST_CASE("A block may run twice before one backward pass, and a graph serve twice",
          "[recompute]") {
  Net net(Train::kAdapters, 0.1);
  auto twice = [&](BlockRunner& runner) {
    at::manual_seed(7);
    const Tensor first = net.forward(runner);
    const Tensor second = net.forward(runner);
    return net.gradients_of(first + 2 * second);
  };
  const Tensors want = twice(direct);
  RecomputeRunner runner = runner_with(plan_of(0b01101001));
  CHECK(test::same_bits(twice(runner), want));

  const Tensors once = net.step(direct);
  at::manual_seed(7);
  const Tensor y = net.forward(runner);
  CHECK(test::same_bits(net.gradients_of(y, /*retain=*/true), once));
  CHECK(test::same_bits(net.gradients_of(y), once));
  CHECK(test::mentions(test::error_of([&] { net.gradients_of(y); }), "backward pass ran twice"));
}

TEST_CASE("Blocks inside a block recompute on their own", "[recompute]") {
  Net net(Train::kAdapters, 0.1, 4);
  const Tensors want = net.step(direct);
  RecomputeRunner inner = runner_with(plan_of(0b01110000));
  struct Outer : Block {
    ToyBlock &a, &b;
    BlockRunner& runner;
    Outer(ToyBlock& first, ToyBlock& second, BlockRunner& r)
        : Block(nullptr, "outer"), a(first), b(second), runner(r) {
      // The inner blocks' adapters are this block's too.
      for (ToyBlock* block : {&a, &b}) {
        for (nn::Linear* layer :
             {&block->q, &block->k, &block->v, &block->out, &block->up, &block->down}) {
          held.push_back(std::make_unique<nn::Linear>(this, "held", 1, 1));
          held.back()->adapters = layer->adapters;
        }
      }
    }
    std::string_view kind() const override { return "outer"; }
    Tensors forward(const Tensors& in) override {
      Tensors next = in;
      next[0] = runner.run(a, in)[0];
      return runner.run(b, next);
    }
    std::vector<std::unique_ptr<nn::Linear>> held;
  } first(*net.blocks[0], *net.blocks[1], inner), second(*net.blocks[2], *net.blocks[3], inner);
  RecomputeRunner outer = runner_with({});
  at::manual_seed(7);
  Tensors in = net.inputs;
  in[0] = outer.run(first, in)[0];
  const Tensor y = outer.run(second, in)[0];
  CHECK(test::same_bits(net.gradients_of(y), want));
}

TEST_CASE("An error in the replay arrives as it is, and leaves everything as it was",
          "[recompute]") {
  Net net(Train::kAdapters, 0.1, 2, /*leased=*/true);
  RecomputeRunner runner = runner_with(plan_of(0b11000001));
  const Tensors want = net.step(runner);
  bool armed = false;
  net.blocks[0]->probe = [&] {
    if (armed) throw Error(ErrorCode::kCancelled, "stop");
  };
  at::manual_seed(7);
  const Tensor y = net.forward(runner);
  const Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  armed = true;
  CHECK(test::error_of([&] { net.gradients_of(y); }).code() == ErrorCode::kCancelled);
  armed = false;
  CHECK(ops::RecomputeScope::current() == nullptr);
  CHECK(at::GradMode::is_enabled());
  CHECK(test::LeasedStore::live == 0);
  CHECK(at::equal(at::detail::getDefaultCPUGenerator().get_state(), state));
  CHECK(test::same_bits(net.step(runner), want));
}

TEST_CASE("The backward pass may run on another thread", "[recompute]") {
  Net net(Train::kAdapters, 0.1);
  const Tensors want = net.step(direct);
  RecomputeRunner runner = runner_with(plan_of(0b00110110));
  at::manual_seed(7);
  const Tensor y = net.forward(runner);
  Tensors grads;
  std::thread([&] {
    at::set_num_threads(1);  // per thread; products differ in their last bits with it
    grads = net.gradients_of(y);
  }).join();
  CHECK(test::same_bits(grads, want));
}

TEST_CASE("Blocks that nobody trains just run", "[recompute]") {
  Net net(Train::kAdapters, 0);
  RecomputeRunner runner = runner_with({});
  at::NoGradGuard no_grad;
  const Tensor y = net.forward(runner);
  CHECK_FALSE(y.requires_grad());
  CHECK(at::equal(y, net.forward(direct)));
}

TEST_CASE("Outputs may be inputs, slices, integers or unused", "[recompute]") {
  const Tensor x = test::trained(at::randn({3, 4})), middle = x * 2;
  RecomputeRunner runner(direct);
  FunctionBlock block([](const Tensors& in) -> Tensors {
    auto halves = (at::cat({in[0], in[0]}) * 3).chunk(2);
    return {in[0], halves[0], halves[1], in[0].argmax(-1)};
  });
  const Tensors out = runner.run(block, {middle, Tensor()});
  CHECK_FALSE(out[1].is_view());
  CHECK_FALSE(out[3].requires_grad());
  const Tensor loss = out[0].sum() + out[1].sum() + 5 * out[2].sum();
  CHECK(at::allclose(torch::autograd::grad({loss}, {x})[0], at::full({3, 4}, 2.0 + 6 + 30)));
}

TEST_CASE("A recomputed block notices what it cannot repeat", "[recompute]") {
  RecomputeRunner runner(direct);
  Net net(Train::kAdapters, 0, 1);
  nn::Linear& layer = net.blocks[0]->q;
  const Tensor x = net.inputs[0];
  auto message = [](const Tensor& y, const Tensors& wanted) {
    return std::string(test::error_of([&] { torch::autograd::grad({y.sum()}, wanted); }).what());
  };
  using Catch::Contains;
  const Tensor leaf = test::trained(x);

  int runs = 0;
  FunctionBlock varying([&](const Tensors& in) -> Tensors {
    return {runs++ ? layer.forward(layer.forward(in[0])) : layer.forward(in[0])};
  });
  CHECK_THAT(message(runner.run(varying, {leaf})[0], {leaf}), Contains("recorded was nothing"));

  FunctionBlock fewer([&](const Tensors& in) -> Tensors {
    return {runs++ % 2 ? layer.forward(in[0]) : layer.forward(layer.forward(in[0]))};
  });
  runs = 0;
  CHECK_THAT(message(runner.run(fewer, {leaf})[0], {leaf}),
             Contains("1 operators and 1 outputs in the replay, recorded were 2 and 1"));

  // A tensor that the block trains and does not declare.
  FunctionBlock hidden([&](const Tensors& in) -> Tensors { return {layer.forward(in[0])}; });
  CHECK_THAT(message(runner.run(hidden, {leaf})[0], {leaf}),
             Contains("is not a weight or an adapter of the block"));

  // An operator's output changed in place, kept.
  RecomputeRunner keeping = runner_with({Action::kKeep});
  FunctionBlock in_place(
      [&](const Tensors& in) -> Tensors { return {ops::linear(in[0], layer.weight).relu_()}; });
  CHECK_THAT(message(keeping.run(in_place, {leaf})[0], {leaf}), Contains("changed in place"));

  // A trained tensor stepped too early.
  const Tensor y = net.forward(runner);
  {
    at::NoGradGuard no_grad;
    net.trained[0].mul_(2);
  }
  CHECK_THAT(message(y, net.trained), Contains("a trained tensor was changed"));

  CHECK(test::mentions(test::error_of([&] {
                         const Tensor z = net.forward(runner);
                         torch::autograd::grad({z.sum()}, net.trained, {}, true, true);
                       }),
                       "no double backward"));
}

}  // namespace atelier::memory
