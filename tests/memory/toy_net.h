// A small network of blocks for tests of what is kept and what is computed again.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "atelier/error.h"
#include "atelier/nn/layers.h"
#include "atelier/ops/attention.h"
#include "atelier/ops/pointwise.h"

#include "memory/recompute.h"
#include "support/tensors.h"

namespace atelier::test {

inline constexpr int64_t kWidth = 16, kHeads = 2, kMlp = 32;
inline constexpr int kOperators = 8;  // mod q k v attention out up down

enum class Train { kAdapters, kAll };

// A transformer block with modulation, packed attention and dropout. Inputs: x [N, D], c [S, D],
// cos, sin, offsets.
struct ToyBlock : Block {
  nn::Linear mod{this, "mod", kWidth, 6 * kWidth}, q{this, "q", kWidth, kWidth},
      k{this, "k", kWidth, kWidth}, v{this, "v", kWidth, kWidth}, out{this, "out", kWidth, kWidth},
      up{this, "up", kWidth, kMlp}, down{this, "down", kMlp, kWidth};
  nn::RMSNorm norm{this, "norm", kWidth / kHeads};
  double dropout = 0;
  std::function<void()> probe = [] {};

  explicit ToyBlock(nn::Module* parent, std::string name) : Block(parent, std::move(name)) {}

  std::string_view kind() const override { return "toy"; }

  Tensors forward(const Tensors& in) override {
    const at::Tensor &x = in[0], &cos = in[2], &sin = in[3];
    const Segments rows = Segments::from_tensor(in[4]);
    const auto m = mod.forward(at::silu(in[1])).chunk(6, -1);
    auto heads = [](const at::Tensor& t) { return t.view({-1, kHeads, kWidth / kHeads}); };
    auto drop = [&](const at::Tensor& t) {
      return dropout > 0 ? at::dropout(t, dropout, true) : t;
    };
    const at::Tensor h = ops::norm_modulate(x, m[0], m[1], rows);
    const at::Tensor weight = norm.weight->draw();
    auto turn = [&](const at::Tensor& t) {
      return ops::norm_rope(heads(t), weight, cos, sin, ops::RopeLayout::kInterleaved);
    };
    const at::Tensor a =
        ops::attention(turn(q.forward(h)), turn(k.forward(h)), heads(v.forward(h)), rows);
    probe();
    auto [y, g] = ops::gate_residual_norm_modulate(x, drop(out.forward(a)), m[2], m[3], m[4], rows);
    const at::Tensor f = drop(down.forward(ops::gelu_tanh(up.forward(g))));
    return {ops::gate_residual(y, f, m[5], rows)};
  }
};

// Sums up what it is given.
struct SummingSink final : GradientSink {
  at::Tensor sum;
  void add(const at::Tensor& gradient) override { sum = sum.defined() ? sum + gradient : gradient; }
};

// Some blocks one after another, on two samples of different lengths. Leased weights become NaN
// when they are let go; where all are trained they have sinks.
struct Net : nn::Module {
  std::vector<std::unique_ptr<ToyBlock>> blocks;
  Tensors inputs, trained;
  at::Tensor target;

  Net(Train train, double dropout, int count = 2, bool leased = false, at::Device device = at::kCPU)
      : Module(nullptr, "") {
    at::manual_seed(1);
    for (int i = 0; i < count; ++i) {
      blocks.push_back(std::make_unique<ToyBlock>(this, "blocks." + std::to_string(i)));
      blocks.back()->dropout = dropout;
      fill(*blocks.back(), train, leased, device);
      Tensors more = memory::trained_tensors(*blocks.back());
      trained.insert(trained.end(), more.begin(), more.end());
    }
    const Segments rows({7, 4});
    const at::Tensor angle = at::randn({rows.total(), kWidth / kHeads / 2});
    inputs = {at::randn({rows.total(), kWidth}), at::randn({2, kWidth}), angle.cos(), angle.sin()};
    target = at::randn({rows.total(), kWidth}).to(device);
    for (at::Tensor& input : inputs) input = input.to(device);
    inputs.push_back(rows.tensor());
    if (train == Train::kAll) {
      for (int i : {0, 1}) trained.push_back(inputs[i].set_requires_grad(true));
    }
  }

  static void fill(ToyBlock& block, Train train, bool leased, at::Device device) {
    block.visit_weights([&](const std::string&, Weight& weight) {
      const at::Tensor value =
          (at::randn(weight.sizes()) / std::sqrt(double(weight.sizes().back()))).to(device);
      if (leased) {
        weight.state().set_store(std::make_shared<test::LeasedStore>(value));
      } else {
        weight.set(value);
      }
      if (train == Train::kAll && leased) {
        weight.state().set_sink(std::make_shared<SummingSink>());
      } else if (train == Train::kAll) {
        weight.state().set_trainable(true);
      }
    });
    if (train == Train::kAll) return;
    for (nn::Linear* layer : {&block.q, &block.k, &block.v, &block.out, &block.up, &block.down}) {
      layer->adapters.push_back(
          {at::randn({3, layer->in_features()}).to(device).requires_grad_(),
           (at::randn({layer->out_features(), 3}) * 0.1).to(device).requires_grad_(), 0.5,
           block.dropout});
    }
  }

  // What the sinks got, in the order of weights.
  Tensors sunk() {
    Tensors result;
    visit_weights([&](const std::string&, Weight& weight) {
      result.push_back(static_cast<const SummingSink&>(*weight.state().sink()).sum);
    });
    return result;
  }

  at::Tensor forward(BlockRunner& runner) {
    Tensors in = inputs;
    for (auto& block : blocks) in[0] = runner.run(*block, in)[0];
    return in[0];
  }

  Tensors gradients_of(const at::Tensor& y, bool retain = false) {
    return torch::autograd::grad({(y * target).sum()}, trained, {}, retain, false, true);
  }

  Tensors step(BlockRunner& runner) {
    at::manual_seed(7);
    return gradients_of(forward(runner));
  }
};

// Draws are allowed while the block is held or runs.
struct HoldingRunner final : BlockRunner {
  int holds = 0, ever = 0;
  Tensors run(Block& block, const Tensors& inputs) override {
    const auto held = hold(block);
    return block.forward(inputs);
  }
  std::shared_ptr<void> hold(Block&) override {
    ++holds, ++ever;
    return {this, [this](void*) { --holds; }};
  }
};

// Draws of another store, each of which has to come while `runner` holds something.
struct GuardedStore final : WeightStore {
  GuardedStore(std::shared_ptr<const WeightStore> store, HoldingRunner& by)
      : inner(std::move(store)), runner(by) {}
  std::shared_ptr<const WeightStore> inner;
  HoldingRunner& runner;
  at::Tensor draw() const override {
    if (runner.holds == 0) throw Error(ErrorCode::kInternal, "nobody holds the block");
    return inner->draw();
  }
};

inline void guard_draws(Net& net, HoldingRunner& runner) {
  net.visit_weights([&](const std::string&, Weight& weight) {
    const auto sink = weight.state().sink();  // goes with the store
    weight.state().set_store(std::make_shared<GuardedStore>(weight.state().store(), runner));
    weight.state().set_sink(sink);
  });
}

}  // namespace atelier::test
