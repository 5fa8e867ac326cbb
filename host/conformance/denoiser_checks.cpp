// What is asked of each denoiser.
#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/sample_scope.h"
#include "atelier/nn/layers.h"

#include "formats/glob.h"
#include "host/conformance/checks.h"
#include "host/model/components.h"

namespace atelier::conformance {

namespace {

class DenoiserChecks : Checks {
 public:
  DenoiserChecks(Subject& subject, const Detection& denoiser)
      : Checks(subject), denoiser_(&denoiser) {}

  void run() {
    check("declarations: LoRA globs match linear layers", [&] { return check_lora_targets(); });
    check("denoise: keeps shape and dtype at two sizes and batches",
          [&] { return check_shapes(); });
    check("denoise: a batch equals its samples", [&] { return check_batch(); });
    check("denoise: calls made together equal each alone", [&] { return check_calls(); });
    check("denoise: samples with LoRAs of their own equal each alone",
          [&] { return check_samples(); });
    check("denoise: runs in bfloat16", [&] { return check_bfloat16(); });
    check("denoise: levels that are prepared give the same bits", [&] { return check_levels(); });
    check("denoise: latents that are given fit", [&] { return check_given(); });
    check("denoise: guidance that is off is the prediction with the prompt",
          [&] { return check_guide(); });
    check("blocks: every block of the denoiser runs once and in order",
          [&] { return check_block_order(); });
    check("blocks: running one twice gives equal results", [&] { return check_blocks_pure(); });
    check("denoise: weights that are set anew count", [&] { return check_new_weights(); });
    check("errors: a missing conditioning entry", [&] { return check_missing_conditioning(); });
    check("errors: a size that does not fit", [&] { return check_wrong_size(); });
  }

 private:
  at::Tensor noise(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::kFloat).to(device());
  }

  Step make_step(const LatentSpec& spec, int64_t batch, int64_t rows, int64_t columns,
                 at::ScalarType dtype = at::kFloat, int64_t frames = 0) const {
    return Checks::make_step(*denoiser_, spec, {batch, rows, columns, frames}, dtype);
  }

  static Step sample_of(const Step& step, int64_t b) {
    Step alone;
    alone.x = step.x.narrow(0, b, 1);
    alone.sigma = step.sigma.narrow(0, b, 1);
    alone.cond = {step.cond[static_cast<size_t>(b)]};
    alone.denoiser = step.denoiser;
    return alone;
  }

  Detail check_lora_targets() const {
    const Detection& dit = *denoiser_;
    const LoraTargets targets = family().lora_targets(dit);
    const std::unique_ptr<Model> model = make(parts());
    expect(spec_of(targets.component) != nullptr, "component '", targets.component,
           "' is not declared");
    expect(!targets.include.empty(), "nothing is included");
    std::vector<std::string> linears;
    model->component(targets.component).visit([&](nn::Module& module) {
      if (dynamic_cast<nn::Linear*>(&module) != nullptr) linears.push_back(module.path());
    });
    for (const std::string& glob : targets.include) {
      expect(std::any_of(linears.begin(), linears.end(),
                         [&](const std::string& path) { return formats::glob_match(glob, path); }),
             "'", glob, "' matches no linear layer");
    }
    return {};
  }

  Detail check_shapes() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>(2, 3), std::pair<int64_t, int64_t>(5, 2)}) {
      for (const int64_t batch : {1, 2}) {
        // Families of videos take several latent frames, too.
        const int64_t frames = spec.takes_clips ? batch : 1;
        Step step = make_step(spec, batch, rows, columns, at::kFloat, frames);
        DirectRunner runner;
        const at::Tensor before = step.x.clone();
        const at::Tensor out = model->denoise(step.inputs(), runner);
        expect(out.sizes() == step.x.sizes(), "gives ", out.sizes(), " for ", step.x.sizes());
        expect(out.scalar_type() == step.x.scalar_type(), "gives another dtype");
        expect(at::isfinite(out).all().item<bool>(), "gives values that are not finite");
        expect(out.data_ptr() != step.x.data_ptr(), "gives its input's memory");
        expect(at::equal(before, step.x), "changes its input");
        expect(at::equal(out, model->denoise(step.inputs(), runner)), "differs when it runs again");
      }
    }
    return {};
  }

  Detail check_batch() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    Step step = make_step(model->latent_spec(), 2, 3, 2);
    DirectRunner runner;
    const at::Tensor together = model->denoise(step.inputs(), runner);
    double worst = 0;
    for (int64_t b = 0; b < 2; ++b) {
      Step alone = sample_of(step, b);
      worst = std::max(
          worst, difference(together.narrow(0, b, 1), model->denoise(alone.inputs(), runner)));
    }
    expect(worst <= kTolerance, "differs by ", worst, ", at most ", kTolerance, " is allowed");
    return figure(worst);
  }

  Detail check_calls() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    std::vector<Step> steps = {make_step(spec, 2, 3, 2), make_step(spec, 1, 2, 4)};
    steps[1].sigma = steps[0].sigma.narrow(0, 1, 1);
    DirectRunner runner;
    std::vector<DenoiseInputs> calls;
    std::vector<at::Tensor> alone;
    for (Step& step : steps) {
      calls.push_back(step.inputs());
      alone.push_back(model->denoise(calls.back(), runner));
    }
    const std::vector<at::Tensor> together = model->denoise_all(calls, runner);
    expect(together.size() == calls.size(), "gives ", together.size(), " velocities of ",
           calls.size(), " calls");
    double worst = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      expect(together[i].sizes() == alone[i].sizes(), "gives ", together[i].sizes(), " for ",
             alone[i].sizes());
      worst = std::max(worst, difference(together[i], alone[i]));
      const std::vector<at::Tensor> one = model->denoise_all({&calls[i], 1}, runner);
      expect(one.size() == 1 && at::equal(one[0], alone[i]),
             "one call has other bits than denoise");
    }
    expect(worst <= kTolerance, "differs by ", worst, ", at most ", kTolerance, " is allowed");
    expect(!together[0].is_alias_of(together[1]), "gives two velocities in one memory");
    return figure(worst);
  }

  // Puts one LoRA on `layer`, as number 0.
  void adapt(nn::Linear& layer) const {
    const double scale = 1.0 / std::sqrt(static_cast<double>(layer.in_features()));
    layer.adapters = {{.a = noise({2, layer.in_features()}),
                       .b = noise({layer.out_features(), 2}),
                       .scale = scale,
                       .number = 0}};
  }

  // Layers may leave samples to calls of their own, but none may mistake one for another.
  Detail check_samples() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const ops::SampleStrengths strengths = {{1.0}, {0.0}, {-0.75}};
    Step step = make_step(model->latent_spec(), 3, 3, 2);
    DirectRunner runner;
    std::vector<nn::Linear*> layers, known;
    model->component(denoiser_->component).visit([&](nn::Module& module) {
      if (auto* linear = dynamic_cast<nn::Linear*>(&module)) layers.push_back(linear);
    });
    for (nn::Linear* layer : layers) {
      adapt(*layer);
      const ops::SampleScope scope(strengths);
      try {
        model->denoise(step.inputs(), runner);
        known.push_back(layer);
      } catch (const Error&) {
        if (!scope.is_unresolved()) throw;
      }
      layer->adapters.clear();
    }
    for (nn::Linear* layer : known) adapt(*layer);
    const at::Tensor together = [&] {
      const ops::SampleScope scope(strengths);
      return model->denoise(step.inputs(), runner);
    }();
    double worst = 0;
    for (int64_t b = 0; b < 3; ++b) {
      Step alone = sample_of(step, b);
      const ops::SampleStrengths own = {strengths[static_cast<size_t>(b)]};
      const ops::SampleScope scope(own);
      worst = std::max(
          worst, difference(together.narrow(0, b, 1), model->denoise(alone.inputs(), runner)));
    }
    expect(worst <= kTolerance, "differs by ", worst, ", at most ", kTolerance,
           " is allowed: rows are taken for another sample's");
    return figure(worst) + ", " + std::to_string(known.size()) + " of " +
           std::to_string(layers.size()) + " layers in one call";
  }

  Detail check_bfloat16() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> exact = make_random(), model = make_random(at::kBFloat16);
    at::manual_seed(kSeed + 1);
    Step step = make_step(exact->latent_spec(), 1, 2, 3, at::kBFloat16);
    DirectRunner runner;
    const at::Tensor out = model->denoise(step.inputs(), runner);
    expect(out.scalar_type() == at::kBFloat16, "gives another dtype");
    step.x = step.x.to(at::kFloat);
    for (Conditioning& cond : step.cond) {
      for (auto& [name, value] : cond) {
        if (value.is_floating_point()) value = value.to(at::kFloat);
      }
    }
    const double error = difference(out, exact->denoise(step.inputs(), runner));
    expect(error < 0.1, "differs from float32 by ", error);
    return figure(error);
  }

  Detail check_levels() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    std::set<const Weight*> own;
    model->component(denoiser_->component).visit_weights([&](const std::string&, Weight& weight) {
      own.insert(&weight);
    });
    for (const WeightPtr& weight : model->level_weights(denoiser_->component))
      expect(own.contains(weight.get()), "a weight of levels is none of the component's");
    Step step = make_step(model->latent_spec(), 2, 2, 3);
    step.sigma = step.sigma.narrow(0, 0, 1).expand({2}).contiguous();
    DirectRunner runner;
    const at::Tensor plain = model->denoise(step.inputs(), runner);
    const float sigma = step.sigma[0].item<float>();
    const std::vector<float> sigmas = {sigma * 0.5F, sigma};
    model->prepare_levels(denoiser_->component, sigmas, runner);
    DenoiseInputs in = step.inputs();
    in.level = 1;
    expect(at::equal(model->denoise(in, runner), plain), "a level that is prepared differs");
    in.level.reset();
    expect(at::equal(model->denoise(in, runner), plain), "a level that is not prepared differs");
    model->forget_levels();
    expect(at::equal(model->denoise(in, runner), plain), "forgotten levels are still there");
    return {};
  }

  Detail check_given() const {
    const std::unique_ptr<Model> model = make(parts());
    const auto step = make_step(model->latent_spec(), 1, 2, 3);
    const auto given = model->given(step.cond.front(), step.x.sizes().slice(1));
    if (!given) return "nothing is given";
    const at::Tensor& values = given->values_CTHW;
    expect(values.dim() == 4 && values.size(0) == model->latent_spec().channels, "values of shape ",
           values.sizes());
    const at::Tensor free = given->free_1THW.to(at::kFloat);
    expect(free.dim() == 4 && (free.size(0) == 1 || free.size(0) == values.size(0)) &&
               free[0].sizes() == values[0].sizes(),
           "what is free has shape ", free.sizes(), ", the values have ", values.sizes());
    expect(at::logical_and(free >= 0, at::isfinite(free)).all().item<bool>(),
           "what is free is told by numbers below 0, or by none");
    return {};
  }

  Detail check_guide() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    auto step = make_step(model->latent_spec(), 1, 2, 3);
    const at::Tensor with = noise(step.x.sizes()), without = noise(with.sizes());
    DirectRunner runner;
    for (const ScheduleDefaults& schedule : family().schedules()) {
      const at::Tensor out = model->guide({with, without, schedule.cfg_off, step.inputs()}, runner);
      expect(out.sizes() == with.sizes(), "gives ", out.sizes());
      expect(difference(out, with) < kTolerance, "differs by ", difference(out, with), " at scale ",
             schedule.cfg_off, ", which is the cfg_off of schedule '", schedule.name, "'");
    }
    return {};
  }

  Detail check_block_order() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const std::vector<Block*> blocks = model->blocks(denoiser_->component);
    expect(!blocks.empty(), "there are no blocks");
    for (const Block* block : blocks) expect(!block->kind().empty(), "a block has no kind");
    Step step = make_step(model->latent_spec(), 2, 2, 3);
    CountingRunner runner;
    model->denoise(step.inputs(), runner);
    expect(runner.order == blocks, "ran ", paths(runner.order), "; declared are ", paths(blocks));
    return std::to_string(blocks.size()) + " blocks";
  }

  Detail check_blocks_pure() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    Step step = make_step(model->latent_spec(), 1, 2, 3);
    CountingRunner runner;
    runner.twice = true;
    model->denoise(step.inputs(), runner);
    expect(runner.differing.empty(), "block ",
           runner.differing.empty() ? "" : runner.differing.front(),
           " gives something else the second time");
    return {};
  }

  // Whatever was made of a weight before is stale when it gets another value.
  Detail check_new_weights() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> used = make_random(), fresh = make_random();
    Step step = make_step(used->latent_spec(), 1, 2, 3);
    DirectRunner runner;
    used->denoise(step.inputs(), runner);
    for (Model* model : {used.get(), fresh.get()}) {
      at::manual_seed(kSeed + 1);
      randomize(model->component(denoiser_->component));
    }
    const double error =
        difference(used->denoise(step.inputs(), runner), fresh->denoise(step.inputs(), runner));
    expect(error <= kTolerance, "differs by ", error,
           " from a model that never had other weights: a block keeps something that it made of "
           "them");
    return {};
  }

  Detail check_missing_conditioning() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const Step whole = make_step(model->latent_spec(), 1, 2, 2);
    expect(!whole.cond.front().empty(), "example_conditioning gives nothing");
    Step step = whole;
    step.cond = {Conditioning{}};
    DirectRunner runner;
    expect_error(ErrorCode::kInvalidArgument, "a conditioning without entries",
                 [&] { model->denoise(step.inputs(), runner); });
    return {};
  }

  Detail check_wrong_size() const {
    const at::NoGradGuard no_grad;
    const std::unique_ptr<Model> model = make_random();
    const LatentSpec spec = model->latent_spec();
    Step step = make_step(spec, 1, 2, 2);
    DirectRunner runner;
    step.x = noise({1, spec.channels + 1, 1, step.x.size(3), step.x.size(4)});
    expect_error(ErrorCode::kInvalidArgument, "latents with a channel too many",
                 [&] { model->denoise(step.inputs(), runner); });
    if (spec.pixel_multiple > spec.spatial_stride) {
      step.x = noise({1, spec.channels, 1, 2 * spec.pixel_multiple / spec.spatial_stride + 1, 4});
      expect_error(ErrorCode::kInvalidArgument, "latents whose height does not fit",
                   [&] { model->denoise(step.inputs(), runner); });
    }
    return {};
  }

  const Detection* denoiser_;
};

}  // namespace

void check_denoisers(Subject& subject) {
  for (const Detection& part : subject.parts) {
    if (model::has_role(subject.family, part.component, Role::kDenoiser))
      DenoiserChecks(subject, part).run();
  }
}

}  // namespace atelier::conformance
