// A family's denoiser with samples that differ in one call; built for each family.
#include <cmath>
#include <regex>

#include <ATen/core/grad_mode.h>

#include "atelier/host/sample_scope.h"
#include "atelier/nn/layers.h"

#include "support/opened_family.h"
#include "support/tensors.h"

namespace atelier {
namespace {

using at::Tensor;
using test::error;
using test::opened_family;

constexpr double kTolerance = 1e-5;  // of the largest value, in float32

// The tiny denoiser, with adapters on its linear layers: three of each, which samples have.
struct Samples {
  const at::NoGradGuard no_grad;
  std::unique_ptr<Model> model;
  std::string name;
  DirectRunner runner;
  std::vector<nn::Linear*> layers;
  std::vector<Conditioning> prompts;
  std::vector<std::vector<double>> strengths = {
      {0.5, 0, 0}, {0, -0.75, 1}, {0, 0, 0}, {1, 0, 0}, {0, 0, 0.25}};

  Samples() {
    at::manual_seed(3);
    for (const ComponentSpec& spec : opened_family().components()) {
      if (spec.role == Role::kDenoiser) name = spec.name;
    }
    std::vector<Detection> parts = opened_family().tiny_parts();
    std::erase_if(parts, [&](const Detection& part) { return part.component != name; });
    parts.resize(1);
    model = opened_family().make_model(parts, {});
    nn::Module& denoiser = model->component(name);
    denoiser.visit_weights([](const std::string&, Weight& weight) {
      weight.set(at::randn(weight.sizes()) / std::sqrt(double(weight.sizes().back())));
    });
    denoiser.visit([&](nn::Module& module) {
      if (auto* linear = dynamic_cast<nn::Linear*>(&module)) layers.push_back(linear);
    });
    for (const int64_t tokens : {5, 3, 6, 4, 9})
      prompts.push_back(opened_family().example_conditioning(parts[0], tokens, at::kFloat));
  }
  // Gives layers whose path `wanted` has their adapters.
  void adapt(const std::regex& wanted) {
    at::manual_seed(5);
    for (nn::Linear* layer : layers) {
      layer->adapters.clear();
      if (!std::regex_search(layer->path(), wanted)) continue;
      const double scale = 0.5 / std::sqrt(double(layer->in_features()));
      for (int64_t number = 0; number < 3; ++number)
        layer->adapters.push_back({.a = at::randn({2 + number, layer->in_features()}),
                                   .b = at::randn({layer->out_features(), 2 + number}),
                                   .scale = scale,
                                   .number = number});
    }
  }
  Tensor latents(int64_t samples, int64_t height, int64_t width, uint64_t seed) const {
    const LatentSpec spec = model->latent_spec();
    const int64_t token = spec.pixel_multiple / spec.spatial_stride;
    at::manual_seed(seed);
    return at::randn({samples, spec.channels, 1, height * token, width * token});
  }
  DenoiseInputs call(const Tensor& x, const Tensor& sigma_B,
                     const std::vector<const Conditioning*>& cond) const {
    return {.x_BCTHW = x, .sigma_B = sigma_B, .cond = cond, .denoiser = name};
  }
  // What sample `b` of a call gives by itself, with its adapters for all rows.
  Tensor alone(const DenoiseInputs& in, int64_t b, const std::vector<double>& own) {
    std::vector<std::vector<ops::Adapter>> numbered;
    for (nn::Linear* layer : layers) {
      numbered.push_back(layer->adapters);
      for (ops::Adapter& adapter : layer->adapters) {
        adapter.scale *= own[static_cast<size_t>(adapter.number)];
        adapter.number = -1;
      }
    }
    DenoiseInputs one = in;
    one.x_BCTHW = in.x_BCTHW.narrow(0, b, 1);
    one.sigma_B = in.sigma_B.narrow(0, b, 1);
    one.cond = in.cond.subspan(static_cast<size_t>(b), 1);
    const Tensor velocity = model->denoise(one, runner);
    for (size_t i = 0; i < layers.size(); ++i) layers[i]->adapters = std::move(numbered[i]);
    return velocity;
  }
};

// Layers that no sample has to itself in one call: a row behind all prompts is read by all.
const char* const kSharedLayers = "text_embedding";

}  // namespace

TEST_CASE("Samples with LoRAs of their own are in one call what they are alone", "[samples]") {
  Samples s;
  const std::vector<const Conditioning*> cond = {&s.prompts[0], &s.prompts[1], &s.prompts[2],
                                                 &s.prompts[3], &s.prompts[4]};
  const Tensor x = s.latents(5, 2, 3, 7), sigma = at::tensor({0.9F, 0.5F, 0.5F, 0.2F, 0.9F});
  const DenoiseInputs in = s.call(x, sigma, cond);
  const Tensor plain = s.model->denoise(in, s.runner);
  s.adapt(std::regex("^(?!.*" + std::string(kSharedLayers) + ")"));
  CHECK(at::equal(s.model->denoise(in, s.runner), plain));  // outside of a scope
  const auto in_scope = [&] {
    const ops::SampleScope scope(s.strengths);
    return s.model->denoise(in, s.runner);
  };
  const Tensor together = in_scope();
  for (int64_t b = 0; b < 5; ++b) {
    INFO("sample " << b);
    const Tensor own = s.alone(in, b, s.strengths[static_cast<size_t>(b)]);
    CHECK(error(together.narrow(0, b, 1), own) < kTolerance);
    const bool is_adapted = b != 2;
    CHECK((error(own, plain.narrow(0, b, 1)) > 0.01) == is_adapted);
  }
  CHECK(error(together[2], plain[2]) < kTolerance);

  // Levels that are prepared are those of no sample's adapters.
  const std::vector<float> levels = {0.9F, 0.5F};
  s.model->prepare_levels(s.name, levels, s.runner);
  DenoiseInputs of_level = in;
  const Tensor same = at::full({5}, 0.5F);
  of_level.sigma_B = same;
  const ops::SampleScope scope(s.strengths);
  const Tensor computed = s.model->denoise(of_level, s.runner);
  of_level.level = 1;
  CHECK(error(s.model->denoise(of_level, s.runner), computed) < kTolerance);
}

TEST_CASE("A layer whose rows are not of single samples is refused in one call", "[samples]") {
  Samples s;
  const bool has_any = std::ranges::any_of(s.layers, [](const nn::Linear* layer) {
    return layer->path().find(kSharedLayers) != std::string::npos;
  });
  if (!has_any) return;
  s.adapt(std::regex(kSharedLayers));
  const std::vector<const Conditioning*> cond = {&s.prompts[0], &s.prompts[1]};
  const DenoiseInputs in = s.call(s.latents(2, 2, 3, 7), at::tensor({0.9F, 0.5F}), cond);
  const ops::SampleStrengths strengths = {s.strengths[0], s.strengths[1]};
  const ops::SampleScope scope(strengths);
  CHECK(test::error_of([&] { s.model->denoise(in, s.runner); }).code() == ErrorCode::kInternal);
  CHECK(scope.is_unresolved());
}

TEST_CASE("Calls of several sizes and levels are made together as each is alone", "[samples]") {
  Samples s;
  s.adapt(std::regex("^(?!.*" + std::string(kSharedLayers) + ")"));
  const std::vector<const Conditioning*> first = {&s.prompts[0], &s.prompts[1]},
                                         second = {&s.prompts[2]},
                                         third = {&s.prompts[3], &s.prompts[4]};
  const Tensor x[] = {s.latents(2, 2, 3, 1), s.latents(1, 4, 1, 2), s.latents(2, 3, 5, 3)};
  const std::vector<float> levels = {0.9F, 0.5F, 0.2F};
  const Tensor sigmas[] = {at::tensor({0.5F, 0.5F}), at::tensor({0.9F}), at::tensor({0.2F, 0.2F})};
  std::vector<DenoiseInputs> calls = {s.call(x[0], sigmas[0], first),
                                      s.call(x[1], sigmas[1], second),
                                      s.call(x[2], sigmas[2], third)};
  const auto check = [&](const std::vector<Tensor>& together, const std::vector<Tensor>& alone) {
    REQUIRE(together.size() == calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      INFO("call " << i);
      CHECK(error(together[i], alone[i]) < kTolerance);
      for (size_t j = 0; j < i; ++j) CHECK_FALSE(together[i].is_alias_of(together[j]));
    }
  };
  std::vector<Tensor> alone;
  for (const DenoiseInputs& in : calls) {
    alone.push_back(s.model->denoise(in, s.runner));
    const std::vector<Tensor> one = s.model->denoise_all({&in, 1}, s.runner);
    REQUIRE(one.size() == 1);
    CHECK(at::equal(one[0], alone.back()));
  }
  CHECK(s.model->denoise_all({}, s.runner).empty());
  check(s.model->denoise_all(calls, s.runner), alone);

  s.model->prepare_levels(s.name, levels, s.runner);
  calls[0].level = 1, calls[1].level = 0;
  check(s.model->denoise_all(calls, s.runner), alone);  // one of which has another level
  calls[2].level = 2;
  check(s.model->denoise_all(calls, s.runner), alone);

  // Each sample with its own adapters.
  std::vector<Tensor> adapted;
  size_t sample = 0;
  for (const DenoiseInputs& in : calls) {
    std::vector<Tensor> own;
    for (int64_t b = 0; b < in.x_BCTHW.size(0); ++b) {
      DenoiseInputs computed = in;
      computed.level.reset();
      own.push_back(s.alone(computed, b, s.strengths[sample++]));
    }
    adapted.push_back(at::cat(own));
  }
  const ops::SampleScope scope(s.strengths);
  check(s.model->denoise_all(calls, s.runner), adapted);
}

}  // namespace atelier
