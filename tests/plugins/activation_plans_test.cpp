// Gradients of a family's denoiser under plans of what is kept; run for each family.
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "atelier/nn/layers.h"

#include "memory/activation_runner.h"
#include "memory/live_bytes.h"
#include "support/models.h"
#include "support/opened_family.h"
#include "support/tensors.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using ops::ActionPlan;
using test::opened_family;

DirectRunner direct;

// kFew: adapters of the blocks' layers but those that modulate. The others are of the whole
// denoiser: all blocks read what the layers before them make of the noise level.
enum class Train { kFew, kAdapters, kAll };

// The tiny denoiser on two samples with prompts of different lengths. Adapters have dropout.
struct Denoiser {
  std::unique_ptr<Model> model;
  std::string name;
  std::vector<Block*> blocks;
  Tensors trained;
  Tensor x, sigma, target;
  std::vector<Conditioning> prompts;

  explicit Denoiser(Train train) {
    at::manual_seed(3);
    for (const ComponentSpec& spec : opened_family().components()) {
      if (spec.role == Role::kDenoiser) name = spec.name;
    }
    std::vector<Detection> parts = opened_family().tiny_parts();
    std::erase_if(parts, [&](const Detection& part) { return part.component != name; });
    REQUIRE(parts.size() == 1);
    model = opened_family().make_model(parts, {});
    blocks = model->blocks(name);
    model->component(name).visit_weights([](const std::string& path, Weight& weight) {
      const bool is_norm = weight.sizes().size() == 1 && path.ends_with("weight");
      const auto fan = static_cast<double>(weight.numel() / weight.sizes()[0]);
      const Tensor noise = at::randn(weight.sizes());
      weight.set(is_norm ? 1 + 0.1 * noise : noise / std::sqrt(std::max(fan, 1.0)));
    });
    if (train == Train::kFew) {
      for (Block* block : blocks) train_parts(*block, train);
    } else {
      train_parts(model->component(name), train);
    }
    const LatentSpec spec = model->latent_spec();
    const int64_t token = spec.pixel_multiple / spec.spatial_stride;
    x = at::randn({2, spec.channels, 1, 2 * token, 3 * token});
    sigma = at::tensor({0.3, 0.8}, at::kFloat);
    target = at::randn(x.sizes());
    for (int64_t tokens : {5, 3})
      prompts.push_back(opened_family().example_conditioning(parts[0], tokens, at::kFloat));
  }

  void train_parts(nn::Module& part, Train train) {
    part.visit([&](nn::Module& module) {
      if (train == Train::kAll) {
        for (const WeightPtr& weight : module.weights()) {
          weight->state().set_trainable(true);
          trained.push_back(weight->state().leaf());
        }
        return;
      }
      auto* layer = dynamic_cast<nn::Linear*>(&module);
      if (layer == nullptr) return;
      if (train == Train::kFew && module.path().find("mod") != std::string::npos) return;
      layer->adapters.push_back({(at::randn({2, layer->in_features()}) * 0.1).requires_grad_(),
                                 (at::randn({layer->out_features(), 2}) * 0.1).requires_grad_(),
                                 0.5, 0.1});
      trained.insert(trained.end(), {layer->adapters.back().a, layer->adapters.back().b});
    });
  }

  Tensor forward(BlockRunner& runner) {
    const Conditioning* both[] = {&prompts[0], &prompts[1]};
    return model->denoise({.x_BCTHW = x, .sigma_B = sigma, .cond = both, .denoiser = name}, runner);
  }
  Tensors gradients_of(const Tensor& loss) const {
    return torch::autograd::grad({loss}, trained, {}, false, false, true);
  }
  Tensors step(BlockRunner& runner) {
    at::manual_seed(7);
    return gradients_of((forward(runner) * target).sum());
  }
  Tensors step_twice(BlockRunner& runner) {
    at::manual_seed(7);
    const Tensor first = forward(runner), second = forward(runner);
    return gradients_of(((first + 2 * second) * target).sum());
  }
};

// Runs each block by a plan of its own.
struct PlannedRunner final : BlockRunner {
  RecomputeRunner& inner;
  std::map<const Block*, ActionPlan> plans;
  std::map<const Block*, std::shared_ptr<BlockCosts>> costs;  // that are measured
  explicit PlannedRunner(RecomputeRunner& by) : inner(by) {}
  Tensors run(Block& block, const Tensors& inputs) override {
    const auto found = costs.find(&block);
    return inner.run(block, inputs, plans[&block], found == costs.end() ? nullptr : found->second);
  }
};

struct Measured {
  Denoiser net;
  std::unique_ptr<TransferDevice> transfer = make_simulated_device({.poison = true});
  RecomputeRunner recompute;
  PlannedRunner runner{recompute};
  std::map<const Block*, std::shared_ptr<BlockCosts>> costs;

  explicit Measured(Train train)
      : net(train),
        recompute(direct, {},
                  {.offloader = std::make_shared<Offloader>(*transfer, int64_t{1} << 30)}) {
    for (Block* block : net.blocks) runner.costs[block] = std::make_shared<BlockCosts>();
    net.step(runner);
    std::swap(costs, runner.costs);
  }

  size_t operators(const Block* block) const { return costs.at(block)->operators.size(); }
  bool may_skip(const Block* block, size_t op) const {
    return costs.at(block)->operators[op].is_unread;
  }
  // One action for every operator, and for those that nobody reads.
  void plan(Action action, Action unread) {
    for (Block* block : net.blocks) {
      ActionPlan& actions = runner.plans[block];
      actions.clear();
      for (size_t op = 0; op < operators(block); ++op)
        actions.push_back(may_skip(block, op) ? unread : action);
    }
  }
};

}  // namespace

TEST_CASE("Every plan gives the bits of keeping everything", "[plans]") {
  constexpr Action kActions[] = {Action::kRecompute, Action::kKeep, Action::kOffload,
                                 Action::kSkip};
  for (Train train : {Train::kFew, Train::kAll}) {
    Measured measured(train);
    Denoiser& net = measured.net;
    const Tensors want = net.step(direct);
    CHECK(test::same_bits(net.step(direct), want));
    size_t most = 0;
    for (Block* block : net.blocks) most = std::max(most, measured.operators(block));
    REQUIRE(most > 4);
    // Each block by its own plan: `flip` says which operators differ from `base`.
    int tried = 0, equal = 0;
    const auto check = [&] {
      ++tried;
      equal += test::same_bits(net.step(measured.runner), want);
    };
    const auto flip = [&](size_t op) {
      for (Block* block : net.blocks) {
        if (op >= measured.operators(block)) continue;
        Action& action = measured.runner.plans[block][op];
        action = action == Action::kRecompute ? Action::kKeep : Action::kRecompute;
      }
    };
    for (Action base : {Action::kRecompute, Action::kKeep}) {
      for (size_t i = 0; i < most; ++i) {
        measured.plan(base, base);
        flip(i);
        check();
        for (size_t j = 0; base == Action::kRecompute && j < i; ++j) {
          measured.plan(base, base);
          flip(i);
          flip(j);
          check();
        }
      }
    }
    for (Action unread : {Action::kSkip, Action::kOffload}) {
      measured.plan(Action::kOffload, unread);
      check();
    }
    std::mt19937 random(23);
    for (int i = 0; i < 256; ++i) {
      for (Block* block : net.blocks) {
        ActionPlan& plan = measured.runner.plans[block];
        plan.clear();
        for (size_t op = 0; op < measured.operators(block); ++op)
          plan.push_back(kActions[random() % (measured.may_skip(block, op) ? 4 : 3)]);
      }
      check();
    }
    CHECK(tried > 256 + 30);
    CHECK(equal == tried);
  }
}

TEST_CASE("Operators that nobody reads are found, and others show as NaN", "[plans]") {
  Measured measured(Train::kFew);
  int skipped = 0, wrong = 0, seen = 0;
  for (Block* block : measured.net.blocks) {
    REQUIRE(measured.costs.at(block)->knows_unread);
    for (size_t op = 0; op < measured.operators(block); ++op) {
      if (measured.may_skip(block, op)) {
        ++skipped;
        continue;
      }
      if (measured.costs.at(block)->operators[op].name != "linear") continue;
      measured.plan(Action::kRecompute, Action::kSkip);
      measured.runner.plans[block][op] = Action::kSkip;
      ++wrong;
      for (const Tensor& t : measured.net.step(measured.runner))
        if (t.defined() && t.isnan().any().item<bool>()) {
          ++seen;
          break;
        }
    }
  }
  INFO(skipped << " skipped, " << wrong << " wrong, " << seen << " seen");
  const char* const has_unread = std::getenv("HAS_UNREAD");
  REQUIRE(has_unread);
  CHECK((skipped > 0) == (std::string(has_unread) == "true"));
  CHECK(seen == wrong);
}

TEST_CASE("Blocks that run twice before one backward pass keep their plans", "[plans]") {
  for (Train train : {Train::kAdapters, Train::kAll}) {
    Measured measured(train);
    const Tensors want = measured.net.step_twice(direct);
    for (Action action : {Action::kRecompute, Action::kKeep, Action::kOffload}) {
      measured.plan(action, Action::kSkip);
      CHECK(test::same_bits(measured.net.step_twice(measured.runner), want));
    }
  }
}

TEST_CASE("Live bytes are those of the formula", "[plans]") {
  for (Train train : {Train::kAdapters, Train::kAll}) {
    Measured measured(train);
    const auto held = [&] {
      LiveBytes bytes(at::kCPU);
      const Tensor y = measured.net.forward(measured.runner);
      return bytes.now();
    };
    measured.plan(Action::kRecompute, Action::kRecompute);
    const int64_t nothing = held();
    for (Block* block : measured.net.blocks) {
      for (size_t op = 0; op < measured.operators(block); ++op) {
        measured.plan(Action::kRecompute, Action::kRecompute);
        measured.runner.plans[block][op] = Action::kKeep;
        CHECK(held() - nothing == measured.costs.at(block)->operators[op].bytes);
      }
    }
  }
}

TEST_CASE("Training within any of 21 budgets gives the same bits", "[plans]") {
  for (Train train : {Train::kAdapters, Train::kAll}) {
    Measured measured(train);
    const Tensors want = measured.net.step(direct);
    for (int i = 0; i <= 20; ++i) {
      for (bool offloads : {false, true}) {
        if (offloads && i % 4 != 2) continue;
        ActivationRunner runner(
            direct, {.kind = ActivationBudget::Kind::kFraction, .fraction = i / 20.0}, at::kCPU, {},
            offloads ? std::make_shared<Offloader>(*measured.transfer, int64_t{1} << 30) : nullptr);
        for (int pass = 0; pass < 2; ++pass) {
          runner.begin_pass();
          CHECK(test::same_bits(measured.net.step(runner), want));
        }
      }
    }
  }
}

}  // namespace atelier::memory
