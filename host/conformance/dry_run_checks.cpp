// Everything that is planned is run on tensors without values before: the tiny parts are, too.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/host/dry_run.h"
#include "atelier/host/weight_state.h"

#include "host/conformance/checks.h"
#include "host/model/components.h"
#include "host/model/stages.h"
#include "host/plugins/guard.h"

namespace atelier::conformance {

namespace {

// Shapes and dtypes by name; "-" where there is no tensor.
using Shapes = std::map<std::string, std::string>;

std::string shape_of(const at::Tensor& tensor) {
  return tensor.defined() ? c10::str(tensor.scalar_type(), tensor.sizes()) : std::string("-");
}

Shapes shapes_of(const NamedTensors& tensors) {
  Shapes shapes;
  for (const auto& [name, tensor] : tensors) shapes[name] = shape_of(tensor);
  return shapes;
}

// Finds fault where tensors without values have other shapes than those with them.
void expect_equal(const Shapes& dry, const Shapes& real, const std::string& where) {
  for (const auto& [name, shape] : real) {
    const auto found = dry.find(name);
    expect(found != dry.end(), where, "'", name, "' is not there without values");
    expect(found->second == shape, where, "'", name, "' is ", found->second,
           " without values, and ", shape, " with them");
  }
  expect(dry.size() == real.size(), where, "gives more without values than with them");
}

class DryRunChecks : Checks {
 public:
  explicit DryRunChecks(Subject& subject) : Checks(subject) {}

  void run() {
    const auto add = [&](const std::string& what, Detail (DryRunChecks::*body)() const) {
      check("dry run: " + what + " needs no values", [&] { return (this->*body)(); });
    };
    add("encoding", &DryRunChecks::check_encoding);
    add("denoising", &DryRunChecks::check_denoising);
    add("decoding", &DryRunChecks::check_decoding);
    add("a training step", &DryRunChecks::check_training);
  }

 private:
  // Makes `run` on a model with values, and on one without them as for a run on the device; that
  // one gets values then, as a model that was planned does. `run` gets the device that tensors are
  // on.
  using Run = std::function<Shapes(Model& model, at::Device on)>;
  void compare(const Run& run, const std::string& where = {}) const {
    const std::unique_ptr<Model> real = make_random(), dry = make(parts());
    for (const Detection& part : parts()) {
      dry->component(part.component).visit_weights([](const std::string&, Weight& weight) {
        weight.set(at::empty(weight.sizes(),
                             at::TensorOptions(at::kMeta).dtype(weight.drawn_dtype(at::kFloat))));
      });
    }
    const Shapes expected = run(*real, device());
    {
      const ops::DryRun scope(device().type());
      expect_equal(run(*dry, at::kMeta), expected, where);
    }
    for (const Detection& part : parts()) randomize(dry->component(part.component));
    run_with_values(run, *dry);
  }

  // A model that ran without values before.
  void run_with_values(const Run& run, Model& model) const {
    std::string failure;
    try {
      run(model, device());
    } catch (...) {
      try {
        plugins::rethrow_at(family().name());
      } catch (const Error& error) {
        failure = error.message();
      }
    }
    expect(failure.empty(), "with values, after a run without them: ", failure,
           "; keep no weight between two calls, and tables by device, as by size");
  }

  // As planning has it: numbers that are no floats keep their values.
  Step step_on(at::Device on, const Detection& denoiser, const LatentSpec& spec) const {
    Step step = make_step(denoiser, spec, {.batch = 2, .rows = 2, .columns = 3});
    step.x = step.x.to(on);
    step.sigma = step.sigma.to(on);
    for (Conditioning& cond : step.cond) {
      for (auto& [name, value] : cond) {
        if (value.is_floating_point()) value = value.to(on);
      }
    }
    return step;
  }

  Detail check_encoding() const {
    const at::NoGradGuard no_grad;
    int64_t tried = 0;
    for (const EncodeStage& stage : model::encode_stages(family())) {
      const bool is_target = subject_.target_stage && stage.name == subject_.target_stage->name;
      const bool is_text =
          model::is_prompted(stage) && !has_tokenizer() && stage.inputs.size() == 1;
      if (!is_target && !is_text) continue;
      ++tried;
      compare(
          [&](Model& model, at::Device on) {
            DirectRunner runner;
            EncodeInputs in = {.stage = stage.name, .values = {{"prompt", std::string("a")}}};
            const int64_t side = 2 * model.latent_spec().pixel_multiple;
            if (is_target)
              in =
                  model::stages_of(family(), {})
                      .target_inputs(at::rand({model.latent_spec().pixel_channels, 1, side, side}));
            return shapes_of(model::encode(model, in, runner, on));
          },
          "stage '" + std::string(stage.name) + "': ");
    }
    tried += check_text_encoders();
    return std::to_string(tried) + " tried";
  }

  // Encoders whose tokenizer is not here, as far as they can be probed with ids, which have values
  // in a dry run, too.
  int64_t check_text_encoders() const {
    int64_t tried = 0;
    for (const Detection& part : parts()) {
      if (!has_tokenizer() || !model::has_role(family(), part.component, Role::kTextEncoder))
        continue;
      const auto probe = [&](Model& model, at::Device) {
        DirectRunner runner;
        const at::Tensor ids = at::zeros({1, 5}, at::kLong);
        return shapes_of(model.probe(part.component, {{"input_ids", ids}}, runner));
      };
      try {
        probe(*make_random(), device());
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kInvalidArgument) continue;  // it is asked in another way
        throw;
      }
      compare(probe, part.component + ": ");
      ++tried;
    }
    return tried;
  }

  Detail check_denoising() const {
    const at::NoGradGuard no_grad;
    for (const Detection& part : parts()) {
      if (!model::has_role(family(), part.component, Role::kDenoiser)) continue;
      compare([&](Model& model, at::Device on) {
        Step step = step_on(on, part, model.latent_spec());
        DirectRunner runner;
        return Shapes{{"velocity", shape_of(model.denoise(step.inputs(), runner))}};
      });
    }
    return {};
  }

  Detail check_decoding() const {
    const at::NoGradGuard no_grad;
    compare([&](Model& model, at::Device on) {
      const LatentSpec spec = model.latent_spec();
      const int64_t side = 2 * spec.pixel_multiple;
      std::vector<int64_t> size = model.latent_shape({1, side, side}, {});
      size.insert(size.begin(), 1);
      DirectRunner runner;
      const at::Tensor latents = at::randn(size).to(on);
      return Shapes{{"pixels", shape_of(model::decode_whole(model, latents, runner, on))}};
    });
    return {};
  }

  // Forward and backward pass to the latents and every weight of each denoiser.
  Detail check_training() const {
    size_t gradients = 0;
    for (const Detection& part : parts()) {
      if (!model::has_role(family(), part.component, Role::kDenoiser)) continue;
      compare(
          [&](Model& model, at::Device on) {
            const Shapes shapes = gradients_of(model, part, on);
            gradients = shapes.size();
            return shapes;
          },
          "the gradient of ");
    }
    return std::to_string(gradients) + " gradients";
  }

  Shapes gradients_of(Model& model, const Detection& denoiser, at::Device on) const {
    Step step = step_on(on, denoiser, model.latent_spec());
    std::vector<at::Tensor> leaves = {step.x.set_requires_grad(true)};
    std::vector<std::string> names = {"the latents"};
    model.component(denoiser.component).visit_weights([&](const std::string& path, Weight& weight) {
      weight.state().set_trainable(true);
      leaves.push_back(weight.state().leaf());
      names.push_back(path);
    });
    DirectRunner runner;
    const at::Tensor loss = model.denoise(step.inputs(), runner).square().mean();
    const std::vector<at::Tensor> grads =
        torch::autograd::grad({loss}, leaves, {}, /*retain_graph=*/false, /*create_graph=*/false,
                              /*allow_unused=*/true);
    Shapes shapes;
    for (size_t i = 0; i < grads.size(); ++i) shapes[names[i]] = shape_of(grads[i]);
    return shapes;
  }
};

}  // namespace

void check_dry_runs(Subject& subject) {
  DryRunChecks(subject).run();
}

}  // namespace atelier::conformance
