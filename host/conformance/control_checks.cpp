// What is asked of each control, beside the denoiser that runs it.
#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/host/weight_state.h"

#include "host/conformance/checks.h"
#include "host/inputs/parse.h"
#include "host/model/components.h"
#include "host/model/stages.h"

namespace atelier::conformance {

namespace {

class ControlChecks : Checks {
 public:
  ControlChecks(Subject& subject, const Detection& control, const Detection& denoiser)
      : Checks(subject),
        spec_(*spec_of(control.component)),
        denoiser_(denoiser),
        stages_(model::encode_stages(family(), denoiser_.variant)) {
    std::ranges::copy_if(parts(), std::back_inserter(parts_), [&](const Detection& part) {
      return !model::has_role(family(), part.component, Role::kControl);
    });
    for (int64_t i = 0; i < std::min<int64_t>(2, spec_.max_count); ++i) {
      parts_.push_back(control);
      parts_.back().component = model::instance_name(spec_.name, i);
      names_.push_back(parts_.back().component);
    }
  }

  void run() {
    const std::string name(spec_.name);
    check("controls: " + name + " runs where its inputs are given, and not elsewhere",
          [&] { return if_encoded([&] { return check_runs(); }); });
    check("controls: every weight of " + name + " gets a gradient",
          [&] { return if_encoded([&] { return check_gradients(); }); });
    if (names_.size() > 1)
      check("controls: several " + name + " are told apart",
            [&] { return if_encoded([&] { return check_instances(); }); });
  }

 private:
  // Thrown where the inputs of a control cannot be made up.
  struct NotTried {
    std::string why;
  };

  Detail if_encoded(const std::function<Detail()>& body) const {
    try {
      return body();
    } catch (const NotTried& not_tried) {
      return "not tried: " + not_tried.why;
    }
  }

  std::unique_ptr<Model> make_model() const {
    at::manual_seed(kSeed);
    std::unique_ptr<Model> model = make(parts_);
    for (const Detection& part : parts_) randomize(model->component(part.component));
    return model;
  }

  MediaTarget target(const Model& model) const {
    const LatentSpec spec = model.latent_spec();
    const int64_t side = 2 * spec.pixel_multiple;
    return {spec.takes_clips ? 1 + spec.temporal_stride : 1, side, side};
  }

  // One value of a kind that has tensors.
  at::Tensor tensor_of(const InputSpec& input, const MediaTarget& size) const {
    const int64_t H = input.fit_height > 0 ? input.fit_height : size.height;
    const int64_t W = input.fit_width > 0 ? input.fit_width : size.width;
    switch (input.kind) {
      case InputKind::kMask:
        return at::rand({1, H, W});
      case InputKind::kVideoMask:
        return at::rand({1, size.frames, H, W});
      case InputKind::kVideo:
        return at::rand({input.channels, size.frames, H, W}) * 2 - 1;
      case InputKind::kAudio:
        return at::rand({input.channels, input.sample_rate}) * 2 - 1;
      default:
        return at::rand({input.channels, H, W}) * 2 - 1;
    }
  }

  template <class Value>
  static InputValue one_or_list(const InputSpec& input, const std::vector<Value>& values) {
    if (inputs::is_list(input)) return values;
    return values.front();
  }

  InputValue value_of(const InputSpec& input, const MediaTarget& size) const {
    const auto count = static_cast<size_t>(input.per_instance_of == spec_.name ? std::ssize(names_)
                                                                               : input.min_count);
    switch (input.kind) {
      case InputKind::kText:
        return one_or_list(
            input, std::vector<std::string>(
                       count, std::string(input.choices.empty() ? "a" : input.choices.front())));
      case InputKind::kInteger:
        return one_or_list(input, std::vector<int64_t>(count, 1));
      case InputKind::kReal:
        return one_or_list(input, std::vector<double>(count, 1.0));
      case InputKind::kFlag:
        return true;
      default:
        break;
    }
    std::vector<at::Tensor> tensors;
    for (size_t i = 0; i < count; ++i) tensors.push_back(tensor_of(input, size).to(device()));
    return one_or_list(input, tensors);
  }

  // Inputs that are for the control, and what their stages need besides.
  Inputs make_inputs(const Model& model) const {
    const MediaTarget size = target(model);
    Inputs inputs;
    for (const InputSpec& input : family().inputs()) {
      const bool is_wanted =
          inputs::is_required(input, denoiser_.variant) && input.role != InputRole::kTarget;
      if (!inputs::holds_for(input, denoiser_.variant)) continue;
      if (is_wanted || model::is_for(input, spec_, stages_))
        inputs.emplace(input.name, value_of(input, size));
    }
    return inputs;
  }

  // What the control's stages give for these inputs, beside the example of the denoiser's own.
  Conditioning encode(Model& model, const Inputs& inputs) const {
    DirectRunner runner;
    Conditioning cond;
    bool has_entries = false;
    for (const EncodeStage& stage : stages_) {
      const bool is_its = std::ranges::any_of(family().inputs(), [&](const InputSpec& input) {
        return model::reads(stage, input.name) && model::is_for(input, spec_, stages_);
      });
      if (!is_its) continue;
      if (model::is_prompted(stage) && has_tokenizer())
        throw NotTried{"stage '" + std::string(stage.name) + "' needs a tokenizer"};
      has_entries = true;
      cond.merge(model::encode(
          model,
          {.stage = stage.name, .values = model::inputs_of(stage, inputs), .target = target(model)},
          runner, device()));
    }
    if (!has_entries) throw NotTried{"it has no inputs"};
    cond.merge(example());
    return cond;
  }

  Conditioning example() const {
    at::manual_seed(kSeed + 1);
    Conditioning cond = family().example_conditioning(denoiser_, 5, at::kFloat);
    for (auto& [name, value] : cond) value = value.to(device());
    return cond;
  }

  at::Tensor denoise(Model& model, const Conditioning& cond, BlockRunner& runner) const {
    std::vector<int64_t> shape = model.latent_shape(target(model), cond);
    shape.insert(shape.begin(), 1);
    at::manual_seed(kSeed + 2);
    const at::Tensor x = at::randn(shape).to(device());
    const SigmaRange range = family().sigma_range(denoiser_);
    const at::Tensor sigma = at::full({1}, (range.low + range.high) / 2, at::kFloat).to(device());
    const Conditioning* one = &cond;
    return model.denoise({.x_BCTHW = x,
                          .sigma_B = sigma,
                          .cond = std::span(&one, 1),
                          .denoiser = denoiser_.component},
                         runner);
  }
  at::Tensor denoise(Model& model, const Conditioning& cond) const {
    DirectRunner runner;
    return denoise(model, cond, runner);
  }

  std::vector<Block*> blocks(Model& model) const {
    std::vector<Block*> all;
    for (const std::string& name : names_) {
      const std::vector<Block*> own = model.blocks(name);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  Detail check_runs() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_model();
    const Conditioning cond = encode(*model, make_inputs(*model));
    const std::vector<Block*> all = blocks(*model);
    const auto count = [&](const CountingRunner& runner, Block* block) {
      return std::ranges::count(runner.order, block);
    };
    CountingRunner with, without;
    const at::Tensor controlled = denoise(*model, cond, with);
    for (Block* block : all)
      expect(count(with, block) == 1, "block ", block->path(), " runs ", count(with, block),
             " times");
    const at::Tensor plain = denoise(*model, example(), without);
    for (Block* block : all)
      expect(count(without, block) == 0, "block ", block->path(), " runs without the inputs");
    expect(controlled.sizes() != plain.sizes() || !at::equal(controlled, plain),
           "the prediction is that without it");
    expect(at::isfinite(controlled).all().item<bool>(), "gives values that are not finite");
    return std::to_string(all.size()) + " blocks";
  }

  Detail check_gradients() const {
    const std::unique_ptr<Model> model = make_model();
    const Conditioning cond = encode(*model, make_inputs(*model));
    std::vector<at::Tensor> leaves;
    std::vector<std::string> names;
    for (const std::string& component : names_) {
      model->component(component).visit_weights([&](const std::string& path, Weight& weight) {
        weight.state().set_trainable(true);
        leaves.push_back(weight.state().leaf());
        names.push_back(component + "." + path);
      });
    }
    const at::Tensor loss = denoise(*model, cond).square().mean();
    const std::vector<at::Tensor> gradients =
        torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false,
                              /*allow_unused=*/true);
    for (size_t i = 0; i < gradients.size(); ++i)
      expect(gradients[i].defined(), names[i], " gets no gradient");
    return std::to_string(gradients.size()) + " gradients";
  }

  // Each has its own weights and its own values of the inputs.
  Detail check_instances() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_model();
    Inputs inputs = make_inputs(*model);
    const at::Tensor both = denoise(*model, encode(*model, inputs));
    bool has_tensors = false;
    for (auto& [name, value] : inputs) {
      const auto input = std::ranges::find(family().inputs(), name, &InputSpec::name);
      auto* tensors = std::get_if<std::vector<at::Tensor>>(&value);
      if (input->per_instance_of != spec_.name || tensors == nullptr) continue;
      std::swap(tensors->front(), tensors->back());
      has_tensors = true;
    }
    if (has_tensors)
      expect(!at::equal(both, denoise(*model, encode(*model, inputs))),
             "values of its inputs in another order give the same");
    randomize(model->component(names_.back()));
    expect(!at::equal(both, denoise(*model, encode(*model, inputs))), "the weights of ",
           names_.back(), " change nothing");
    return {};
  }

  const ComponentSpec& spec_;
  const Detection& denoiser_;
  std::vector<EncodeStage> stages_;
  std::vector<Detection> parts_;    // of the model that is tried
  std::vector<std::string> names_;  // of the control in it
};

}  // namespace

void check_controls(Subject& subject) {
  for (const Detection& part : subject.parts) {
    const ComponentSpec& spec = *model::find_component(subject.family, part.component);
    const auto denoiser = std::ranges::find(subject.parts, spec.beside, &Detection::component);
    if (spec.role == Role::kControl && denoiser != subject.parts.end())
      ControlChecks(subject, part, *denoiser).run();
  }
}

}  // namespace atelier::conformance
