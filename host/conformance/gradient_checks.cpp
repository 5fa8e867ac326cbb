// What is asked of the gradients of each denoiser: they are the same however they come about, and
// they say how the prediction changes.
#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/host/weight_state.h"

#include "host/conformance/checks.h"
#include "host/model/components.h"
#include "memory/recompute.h"

namespace atelier::conformance {

namespace {

constexpr double kGradientTolerance = 1e-6;  // of each gradient's largest value
// How far leaves are moved, in parts of their own size.
constexpr double kMove = 4e-3;
// How far the slope that gradients tell may be from the measured one, in parts of that.
constexpr double kSlopeTolerance = 0.05;
// What rounding may change of a prediction, in parts of its norm.
constexpr double kRounding = 1e-5;

class GradientChecks : Checks {
 public:
  GradientChecks(Subject& subject, const Detection& denoiser)
      : Checks(subject), denoiser_(&denoiser) {}

  void run() {
    check("gradients: recomputed equal kept", [&] { return check_recomputed(); });
    check("gradients: they tell how the prediction changes", [&] { return check_slopes(); });
  }

 private:
  // A denoiser and all that it can learn: the latents, which stand for what comes before it, and
  // each of its weights.
  struct Trained {
    std::unique_ptr<Model> model;
    Step step;
    std::vector<at::Tensor> leaves;
    std::vector<std::string> names;

    // Gradients of the prediction, summed with these factors, or with itself where there are none.
    // Undefined where a leaf gets none.
    std::vector<at::Tensor> gradients(BlockRunner& runner, const at::Tensor& factors = {}) {
      const at::Tensor out = model->denoise(step.inputs(), runner);
      expect(out.requires_grad(), "nothing gets a gradient: the prediction has no graph");
      return torch::autograd::grad({out}, leaves, {factors.defined() ? factors : out.detach()},
                                   /*retain_graph=*/false, /*create_graph=*/false,
                                   /*allow_unused=*/true);
    }
  };

  Trained make_trained() const {
    Trained made;
    made.model = make_random();
    made.step = make_step(*denoiser_, made.model->latent_spec(), {2, 2, 3});
    made.step.x.set_requires_grad(true);
    made.leaves.push_back(made.step.x);
    made.names.emplace_back("the latents");
    made.model->component(denoiser_->component)
        .visit_weights([&](const std::string& path, Weight& weight) {
          weight.state().set_trainable(true);
          made.leaves.push_back(weight.state().leaf());
          made.names.push_back(path);
        });
    return made;
  }

  Detail check_recomputed() const {
    Trained trained = make_trained();
    const std::vector<at::Tensor>& leaves = trained.leaves;
    DirectRunner direct;
    const std::vector<at::Tensor> kept = trained.gradients(direct);
    const ops::ActionPlan all_kept(4096, ops::Action::kKeep);
    ops::ActionPlan alternating(4096, ops::Action::kRecompute);
    for (size_t i = 0; i < alternating.size(); i += 2) alternating[i] = ops::Action::kKeep;
    double worst = 0;
    for (const ops::ActionPlan& plan : {ops::ActionPlan{}, all_kept, alternating}) {
      memory::RecomputeRunner runner(direct, [&](const Block&) { return plan; });
      const std::vector<at::Tensor> recomputed = trained.gradients(runner);
      for (size_t i = 0; i < leaves.size(); ++i) {
        if (!kept[i].defined() && !recomputed[i].defined()) continue;
        const at::Tensor zero = at::zeros_like(leaves[i]);
        const at::Tensor& expected = kept[i].defined() ? kept[i] : zero;
        const double error = difference(recomputed[i].defined() ? recomputed[i] : zero, expected);
        expect(error <= kGradientTolerance, "the gradient of ", trained.names[i], " differs by ",
               error);
        worst = std::max(worst, error);
      }
    }
    return figure(worst) + ", " + std::to_string(count_defined(kept)) + " gradients, 3 plans";
  }

  static int64_t count_defined(const std::vector<at::Tensor>& gradients) {
    return std::ranges::count_if(gradients, [](const at::Tensor& g) { return g.defined(); });
  }

  // The denoiser without a graph, whose leaves can be moved away from their values.
  struct Movable {
    std::unique_ptr<Model> model;
    Step step;
    std::vector<Weight*> weights;  // in the order of the leaves; null: the latents
    std::vector<at::Tensor> values, directions, gradients;
    at::Tensor factors;  // with which the prediction is summed

    void put(size_t leaf, const at::Tensor& value) {
      if (weights[leaf] != nullptr) {
        weights[leaf]->set(value);
      } else {
        step.x = value;
      }
    }

    // The prediction where the leaves of a group are moved by `size` along their directions.
    at::Tensor predict(const std::vector<size_t>& group, double size) {
      DirectRunner runner;
      for (const size_t leaf : group) put(leaf, values[leaf] + directions[leaf] * size);
      const at::Tensor out = model->denoise(step.inputs(), runner).to(at::kDouble);
      for (const size_t leaf : group) put(leaf, values[leaf]);
      return out;
    }
    double slope(const std::vector<size_t>& group, double size) {
      const at::Tensor change = predict(group, size) - predict(group, -size);
      return (change * factors).sum().item<double>() / (2 * size);
    }
    // The slope that the gradients tell.
    double told_slope(const std::vector<size_t>& group) const {
      double sum = 0;
      for (const size_t leaf : group) {
        if (gradients[leaf].defined())
          sum += (gradients[leaf].to(at::kDouble) * directions[leaf]).sum().item<double>();
      }
      return sum;
    }
  };

  Movable make_movable(Trained& trained) const {
    Movable made;
    made.model = make_random();
    made.step = trained.step;
    made.weights = {nullptr};
    made.model->component(denoiser_->component)
        .visit_weights(
            [&](const std::string&, Weight& weight) { made.weights.push_back(&weight); });
    at::manual_seed(kSeed + 3);
    for (const at::Tensor& leaf : trained.leaves) {
      made.values.push_back(leaf.detach());
      const double size = leaf.detach().square().mean().sqrt().item<double>();
      made.directions.push_back(at::randn(leaf.sizes(), at::kFloat).to(device()) *
                                (size > 0 ? size : 1.0));
    }
    made.step.x = made.values.front();
    made.factors = at::randn(made.step.x.sizes(), at::kFloat).to(device());
    DirectRunner runner;
    made.gradients = trained.gradients(runner, made.factors);
    return made;
  }

  // The measured slope where it is another than the gradients tell, and nothing else explains that:
  // slopes over two distances agree, and it is more than rounding.
  static std::optional<double> measure_other_slope(Movable& movable,
                                                   const std::vector<size_t>& group,
                                                   double rounding) {
    const double slope = movable.slope(group, kMove), wider = movable.slope(group, 2 * kMove);
    const double allowed =
        kSlopeTolerance * std::abs(slope) + 4 * std::abs(slope - wider) + rounding / kMove;
    const bool is_other = std::abs(movable.told_slope(group) - slope) > allowed;
    return is_other ? std::optional(slope) : std::nullopt;
  }

  // Leaves that are moved together: those of a block, in running order, before them the latents and
  // what belongs to no block.
  struct Group {
    std::string name;
    std::vector<size_t> leaves;
  };
  std::vector<Group> groups_of(Model& model, const std::vector<std::string>& names) const {
    std::vector<Group> groups = {{"the latents", {0}}, {"the weights outside of blocks", {}}};
    const std::vector<Block*> blocks = model.blocks(denoiser_->component);
    for (const Block* block : blocks) groups.push_back({"the weights of " + block->path(), {}});
    for (size_t leaf = 1; leaf < names.size(); ++leaf) {
      const auto block = std::ranges::find_if(
          blocks, [&](const Block* one) { return names[leaf].starts_with(one->path() + "."); });
      const auto place = block == blocks.end() ? 1 : 2 + (block - blocks.begin());
      groups[static_cast<size_t>(place)].leaves.push_back(leaf);
    }
    return groups;
  }

  // Leaves without a gradient may be those of a branch that these inputs do not reach; none may
  // move the prediction.
  void check_undefined(Movable& movable, const std::vector<std::string>& names,
                       double rounding) const {
    std::string lost;
    int64_t count = 0;
    constexpr int64_t kNamed = 3;
    for (size_t leaf = 0; leaf < names.size(); ++leaf) {
      if (movable.gradients[leaf].defined() || !measure_other_slope(movable, {leaf}, rounding))
        continue;
      if (++count <= kNamed) lost += (count > 1 ? ", " : "") + names[leaf];
    }
    if (count > kNamed) lost += " and " + std::to_string(count - kNamed) + " more";
    expect(count == 0, "no gradient reaches ", lost,
           ", and the prediction depends on them: NoGradGuard, detach() or values that leave "
           "tensors drop it on the way");
  }

  Detail check_slopes() const {
    Trained trained = make_trained();
    Movable movable = make_movable(trained);
    const at::NoGradGuard no_grad;
    const double rounding = kRounding * movable.predict({}, 0).norm().item<double>();
    check_undefined(movable, trained.names, rounding);
    std::vector<Group> groups = groups_of(*movable.model, trained.names);
    // The last group that is wrong is the nearest to what drops its gradients.
    std::reverse(groups.begin(), groups.end());
    for (const Group& group : groups) {
      const auto slope = measure_other_slope(movable, group.leaves, rounding);
      expect(!slope, "gradients of ", group.name, " say that the prediction changes by ",
             figure(movable.told_slope(group.leaves)), " along a direction, and it changes by ",
             figure(slope.value_or(0)),
             ": what computes with them, or with what they lead to, drops or bends gradients");
    }
    const int64_t defined = count_defined(movable.gradients);
    return std::to_string(defined) + " of " + std::to_string(trained.leaves.size()) +
           " get one, tried in " + std::to_string(groups.size()) + " directions";
  }

  const Detection* denoiser_;
};

}  // namespace

void check_gradients(Subject& subject) {
  for (const Detection& part : subject.parts) {
    if (model::has_role(subject.family, part.component, Role::kDenoiser))
      GradientChecks(subject, part).run();
  }
}

}  // namespace atelier::conformance
