// Tensors that several blocks read, or one block more than once: the order in which their gradients
// are summed up.
#include <optional>

#include "memory/direct.h"
#include "memory/recompute.h"
#include "memory/toy_net.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using ops::ActionPlan;
using test::direct;
using test::kWidth;

constexpr unsigned kReads = 4;  // products of a ReadingBlock

// Inputs: x, and what every block reads. Each of its two layers runs twice.
struct ReadingBlock : Block {
  nn::Linear own{this, "own", kWidth, kWidth}, common{this, "common", kWidth, kWidth};
  using Block::Block;
  std::string_view kind() const override { return "reading"; }
  Tensors forward(const Tensors& in) override {
    const Tensor &x = in[0], &c = in[1];
    const Tensor y = x + own.forward(at::tanh(own.forward(x)) * c);
    return {y + common.forward(at::sigmoid(common.forward(y) + c)) * c};
  }
};

// Two blocks that run twice each. They have the weight and the adapter of `common` together.
struct SharingNet : nn::Module {
  ReadingBlock blocks[2] = {{this, "0"}, {this, "1"}};
  Tensor x = test::trained(at::randn({5, kWidth})), c = test::trained(at::randn({5, kWidth}));
  Tensor target = at::randn({5, kWidth});
  Tensors trained = {x, c};

  SharingNet() : Module(nullptr, "") {
    const Tensor leaf = test::trained(at::randn({kWidth, kWidth}));
    const ops::Adapter adapter{test::trained(at::randn({3, kWidth})),
                               test::trained(at::randn({kWidth, 3})), 0.5};
    trained.insert(trained.end(), {leaf, adapter.a, adapter.b});
    for (ReadingBlock& block : blocks) {
      block.visit_weights([&](const std::string&, Weight& weight) {
        weight.set(at::randn(weight.sizes()));
        weight.state().set_trainable(true);
      });
      block.common.weight->state().lend_leaf(leaf);
      block.common.adapters.push_back(adapter);
      trained.insert(trained.end(),
                     {block.own.weight->state().leaf(), block.own.bias->state().leaf(),
                      block.common.bias->state().leaf()});
    }
  }

  Tensors step(BlockRunner& runner) {
    const Tensor shared = at::silu(c);
    Tensor y = x;
    for (int run = 0; run < 4; ++run) y = runner.run(blocks[run % 2], {y, shared})[0];
    return torch::autograd::grad({((y + shared) * target).sum()}, trained);
  }
};

// Keeps a run whole, or recomputes it with a plan: as `plans` says, one run after another.
struct MixedRunner final : BlockRunner {
  RecomputeRunner recompute{direct};
  std::vector<std::optional<ActionPlan>> plans;
  size_t next = 0;
  Tensors run(Block& block, const Tensors& inputs) override {
    const std::optional<ActionPlan>& plan = plans[next++ % plans.size()];
    return plan ? recompute.run(block, inputs, *plan) : direct.run(block, inputs);
  }
};

// The way number `way` of running a block: by a mask of what is kept, the last one whole.
constexpr unsigned kWays = (1u << kReads) + 1;
std::optional<ActionPlan> plan_of_way(unsigned way) {
  if (way + 1 == kWays) return std::nullopt;
  ActionPlan plan;
  for (unsigned i = 0; i < kReads; ++i)
    plan.push_back(way >> i & 1 ? Action::kKeep : Action::kRecompute);
  return plan;
}

}  // namespace

TEST_CASE("Gradients of what all blocks read do not depend on which are recomputed",
          "[recompute]") {
  at::manual_seed(5);
  SharingNet net;
  const Tensors want = net.step(direct);
  REQUIRE(want.size() == 11);
  int equal = 0;
  for (unsigned first = 0; first < kWays; ++first) {
    for (unsigned second = 0; second < kWays; ++second) {
      MixedRunner runner;
      runner.plans = {plan_of_way(first), plan_of_way(second), plan_of_way(second)};
      equal += test::same_bits(net.step(runner), want);
    }
  }
  CHECK(equal == kWays * kWays);
}

TEST_CASE("A tensor that a block gets twice, and hands on, has one gradient whatever the plan",
          "[recompute]") {
  struct TwiceBlock : Block {
    using Block::Block;
    std::string_view kind() const override { return "twice"; }
    Tensors forward(const Tensors& in) override {
      return {at::sin(in[0]) * in[1] + at::exp(in[1] * in[2]), in[2]};
    }
  } block(nullptr, "twice");
  at::manual_seed(6);
  const Tensor leaf = test::trained(at::randn({4, kWidth})), target = at::randn({4, kWidth});
  const auto step = [&](BlockRunner& runner) {
    const Tensor c = leaf * 3;
    Tensors out{c, c};
    for (int run = 0; run < 3; ++run) out = runner.run(block, {out[0], c, out[1]});
    return torch::autograd::grad({((out[0] + out[1] + c) * target).sum()}, {leaf});
  };
  const Tensors want = step(direct);
  for (unsigned whole = 0; whole < 8; ++whole) {
    MixedRunner runner;
    for (int run = 0; run < 3; ++run) {
      runner.plans.push_back(whole >> run & 1 ? std::nullopt : std::optional(ActionPlan()));
    }
    CHECK(test::same_bits(step(runner), want));
  }
}

TEST_CASE("Blocks inside a block sum up as it does", "[recompute]") {
  struct OuterBlock : Block {
    BlockRunner* inner = nullptr;
    ReadingBlock first{this, "first"}, second{this, "second"};
    using Block::Block;
    std::string_view kind() const override { return "outer"; }
    Tensors forward(const Tensors& in) override {
      return inner->run(second, {inner->run(first, in)[0], in[1]});
    }
  } outer(nullptr, "outer");
  at::manual_seed(8);
  const Tensor leaf = test::trained(at::randn({kWidth, kWidth}));
  Tensors trained = {test::trained(at::randn({5, kWidth})), test::trained(at::randn({5, kWidth})),
                     leaf};
  outer.visit_weights([&](const std::string& path, Weight& weight) {
    weight.set(at::randn(weight.sizes()));
    if (path.ends_with("common.weight")) return weight.state().lend_leaf(leaf);
    weight.state().set_trainable(true);
    trained.push_back(weight.state().leaf());
  });
  REQUIRE(trained_tensors(outer).size() == trained.size() - 2);
  const Tensor target = at::randn({5, kWidth});
  const auto step = [&](BlockRunner& around, BlockRunner& inside) {
    outer.inner = &inside;
    const Tensor c = at::silu(trained[1]);
    Tensor y = trained[0];
    for (int run = 0; run < 2; ++run) y = around.run(outer, {y, c})[0];
    return torch::autograd::grad({(y * target).sum()}, trained);
  };
  const Tensors want = step(direct, direct);
  RecomputeRunner around(direct), inside(direct);
  CHECK(test::same_bits(step(around, direct), want));
  CHECK(test::same_bits(step(direct, inside), want));
  CHECK(test::same_bits(step(around, inside), want));
}

}  // namespace atelier::memory
