// A model without weights whose every output has a closed form.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/scaled_products.h"
#include "atelier/model.h"
#include "atelier/named_inputs.h"

#include "host/generate/engine.h"

namespace atelier::generate {

// Latents have 4 channels and stride 8. The text encoder gives the number of the prompt's letters;
// the denoiser says v = rate * x + letters / 100; pixels repeat the first three channels, over 4.
class FakeModel final : public Model {
 public:
  double rate = 0.5;
  std::map<std::string, double, std::less<>> rates;  // of denoisers that have another one
  int64_t denoise_calls = 0;
  std::vector<int64_t> rows_seen;                    // batch of each denoise call
  std::vector<float> sigmas_seen, next_sigmas_seen;  // the first of each denoise call
  std::vector<std::string> prompts_encoded;
  double input_mean_at_first = 0;
  std::map<std::string, std::vector<float>, std::less<>> levels;  // that are prepared, by denoiser
  int64_t times_prepared = 0;
  std::vector<BlockRunner*> runners;        // of every call that gets one
  std::vector<std::string> denoisers_seen;  // of each denoise call
  std::optional<GivenLatents> known;
  bool decodes_in_parts = false;                             // a frame a call
  int64_t frames_more = 0;                                   // than there should be, or less
  std::vector<at::Tensor> latents_seen;                      // of each denoise call
  std::vector<at::ScalarType> dtypes_seen;                   // of these
  int64_t calls_with_fast_sums = 0;                          // that encode or denoise
  std::function<void(const DenoiseInputs&)> before_denoise;  // may throw

  nn::Module& component(std::string_view) override { throw Error(ErrorCode::kNotFound, "none"); }
  std::vector<Block*> blocks(std::string_view) override { return {}; }
  LatentSpec latent_spec() const override {
    return {.channels = 4, .spatial_stride = 8, .pixel_multiple = 16, .token_stride = 16};
  }
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      BlockRunner& runner) override {
    runners.push_back(&runner);
    levels[std::string(denoiser)].assign(sigmas.begin(), sigmas.end());
    ++times_prepared;
  }
  void forget_levels() override { levels.clear(); }
  Conditioning encode(const EncodeInputs& in, BlockRunner&) override {
    if (in.stage == "latents") return {{"latents", encode_clip(clip_input(in.values, "image"))}};
    calls_with_fast_sums += ops::FastSums::are_allowed();
    prompts_encoded.push_back(text_input(in.values, "prompt"));
    return {{"letters", at::full({1}, static_cast<double>(prompts_encoded.back().size()))}};
  }
  TextLength text_length(const EncodeInputs& in) const override {
    return {.tokens = std::ssize(text_input(in.values, "prompt")), .limit = 100};
  }
  at::Tensor encode_clip(const at::Tensor& pixels) {
    const at::Tensor rgb = at::avg_pool2d(pixels.squeeze(1), {8, 8}) / 2;
    return at::cat({rgb, at::zeros_like(rgb.narrow(0, 0, 1))}).unsqueeze(1);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    runners.push_back(&runner);
    if (before_denoise) before_denoise(in);
    if (in.level) {
      const std::vector<float>& own = levels.at(std::string(in.denoiser));
      TORCH_CHECK(own.at(static_cast<size_t>(*in.level)) == in.sigma_B[0].item<float>());
    }
    calls_with_fast_sums += ops::FastSums::are_allowed();
    denoisers_seen.emplace_back(in.denoiser);
    latents_seen.push_back(in.x_BCTHW.clone());
    dtypes_seen.push_back(in.x_BCTHW.scalar_type());
    if (denoise_calls++ == 0) input_mean_at_first = in.x_BCTHW.mean().item<double>();
    rows_seen.push_back(in.x_BCTHW.size(0));
    sigmas_seen.push_back(in.sigma_B[0].item<float>());
    if (in.next_sigma_B) next_sigmas_seen.push_back((*in.next_sigma_B)[0].item<float>());
    TORCH_CHECK(static_cast<int64_t>(in.cond.size()) == in.x_BCTHW.size(0));
    const auto own = rates.find(in.denoiser);
    at::Tensor v = in.x_BCTHW * (own == rates.end() ? rate : own->second);
    for (int64_t i = 0; i < v.size(0); ++i) {
      v[i].add_(in.cond[i]->at("letters").item<double>() / 100);
    }
    return v;
  }
  std::optional<GivenLatents> given(const Conditioning&, at::IntArrayRef) const override {
    return known;
  }
  void decode(const at::Tensor& latents, BlockRunner&, const FrameSink& sink) override {
    const at::Tensor cells = frames_more > 0 ? at::cat({latents, latents.narrow(2, 0, 1)}, 2)
                                             : latents.narrow(2, 0, latents.size(2) + frames_more);
    const at::Tensor pixels = (cells.narrow(1, 0, 3).to(at::kFloat) / 4)
                                  .repeat_interleave(8, -2)
                                  .repeat_interleave(8, -1);
    if (!decodes_in_parts) return sink(pixels);
    for (int64_t t = 0; t < pixels.size(2); ++t) sink(pixels.narrow(2, t, 1));
  }
  NamedTensors probe(std::string_view, const NamedTensors&, BlockRunner&) override { return {}; }
  std::vector<int64_t> tokenize(std::string_view) const override { return {}; }
};

inline constexpr std::array<std::string_view, 2> kEncoders = {"words", "text_encoder"};
inline constexpr std::array<std::string_view, 1> kVae = {"vae"}, kImage = {"image"};
inline constexpr std::array<std::string_view, 2> kPrompt = {"prompt", "strength"};
inline constexpr std::array<EncodeStage, 2> kStages = {
    EncodeStage{.name = "text", .components = kEncoders, .inputs = kPrompt},
    EncodeStage{.name = "latents", .components = kVae, .inputs = kImage}};

inline constexpr InputSpec kTarget = {
    .name = "image", .kind = InputKind::kImage, .role = InputRole::kTarget};

// What was loaded and unloaded, in order: "+text_encoder", "-text_encoder".
inline EngineModel fake_engine(FakeModel& model, std::vector<std::string>& log,
                               bool keeps_all = false) {
  EngineModel of = {
      .model = model,
      .stages = {.variant = "",
                 .components = {{"words", {.name = "words", .role = Role::kTokenizer}},
                                {"text_encoder",
                                 {.name = "text_encoder", .role = Role::kTextEncoder}},
                                {"vae", {.name = "vae", .role = Role::kVae}},
                                {"dit", {.name = "dit", .role = Role::kDenoiser}}},
                 .encoding = {kStages.begin(), kStages.end()},
                 .target_input = &kTarget,
                 .denoisers = {{.part = {.component = "dit"}}}},
      .load = [&log](std::string_view name) { log.push_back("+" + std::string(name)); },
      .unload = [&log](std::string_view name) { log.push_back("-" + std::string(name)); }};
  if (keeps_all) of.stays = {"text_encoder", "vae", "dit"};
  return of;
}

// The engine with two denoisers, for the noisy half of the levels and for the other one.
inline EngineModel two_denoisers(FakeModel& model, std::vector<std::string>& log) {
  EngineModel of = fake_engine(model, log);
  of.stages.components.push_back({"dit_low", {.name = "dit_low", .role = Role::kDenoiser}});
  of.stages.denoisers = {{{.component = "dit"}, {.low = 0.5, .high = 1.0}},
                         {{.component = "dit_low"}, {.low = 0.0, .high = 0.5}}};
  return of;
}

}  // namespace atelier::generate
