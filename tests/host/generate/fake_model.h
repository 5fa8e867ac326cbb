// A model without weights whose every output has a closed form.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/model.h"

#include "host/generate/generator.h"

namespace atelier::generate {

// Latents have 4 channels and stride 8. The text encoder gives the number of the prompt's letters;
// the denoiser says v = rate * x + letters / 100; pixels repeat the first three channels, over 4.
class FakeModel final : public Model {
 public:
  double rate = 0.5;
  int64_t denoise_calls = 0;
  std::vector<int64_t> rows_seen;  // batch of each denoise call
  std::vector<float> sigmas_seen;  // first sigma of each denoise call
  std::vector<std::string> prompts_encoded;
  double input_mean_at_first = 0;
  std::vector<float> levels;  // that are prepared
  int64_t times_prepared = 0;
  std::vector<BlockRunner*> runners;  // of every call that gets one

  nn::Module& component(std::string_view) override { throw Error(ErrorCode::kNotFound, "none"); }
  std::vector<Block*> blocks(std::string_view) override { return {}; }
  LatentSpec latent_spec() const override {
    return {.channels = 4, .spatial_stride = 8, .pixel_multiple = 16, .token_stride = 16};
  }
  void prepare_levels(std::span<const float> sigmas, BlockRunner& runner) override {
    runners.push_back(&runner);
    levels.assign(sigmas.begin(), sigmas.end());
    ++times_prepared;
  }
  void forget_levels() override { levels.clear(); }
  Conditioning encode_text(const Inputs& inputs, BlockRunner&) override {
    prompts_encoded.push_back(std::get<std::string>(inputs.at("prompt")));
    return {{"letters", at::full({1}, static_cast<double>(prompts_encoded.back().size()))}};
  }
  TextLength text_length(const Inputs& inputs) const override {
    return {.tokens = std::ssize(std::get<std::string>(inputs.at("prompt"))), .limit = 100};
  }
  at::Tensor encode_media(const at::Tensor& pixels, BlockRunner&) override {
    const at::Tensor rgb = at::avg_pool2d(pixels.squeeze(1), {8, 8}) / 2;
    return at::cat({rgb, at::zeros_like(rgb.narrow(0, 0, 1))}).unsqueeze(1);
  }
  at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
    runners.push_back(&runner);
    TORCH_CHECK(levels.at(static_cast<size_t>(in.level.value())) == in.sigma_B[0].item<float>());
    if (denoise_calls++ == 0) input_mean_at_first = in.x_BCTHW.mean().item<double>();
    rows_seen.push_back(in.x_BCTHW.size(0));
    sigmas_seen.push_back(in.sigma_B[0].item<float>());
    TORCH_CHECK(static_cast<int64_t>(in.cond.size()) == in.x_BCTHW.size(0));
    at::Tensor v = in.x_BCTHW * rate;
    for (int64_t i = 0; i < v.size(0); ++i) {
      v[i].add_(in.cond[i]->at("letters").item<double>() / 100);
    }
    return v;
  }
  at::Tensor decode(const at::Tensor& latents, BlockRunner&) override {
    return (latents.narrow(1, 0, 3).to(at::kFloat) / 4)
        .repeat_interleave(8, -2)
        .repeat_interleave(8, -1);
  }
  NamedTensors probe(std::string_view, const NamedTensors&, BlockRunner&) override { return {}; }
  std::vector<int64_t> tokenize(std::string_view) const override { return {}; }
};

// What was loaded and unloaded, in order: "+text_encoder", "-text_encoder".
inline Engine fake_engine(FakeModel& model, std::vector<std::string>& log, bool keeps_all = false) {
  return {
      .model = model,
      .family = "fake",
      .components = {{.name = "words", .role = "tokenizer", .phases = {.encode = true}},
                     {.name = "text_encoder", .role = "text_encoder", .phases = {.encode = true}},
                     {.name = "vae", .role = "vae", .phases = {.encode = true, .decode = true}},
                     {.name = "dit", .role = "dit", .phases = {.denoise = true}}},
      .load = [&log](std::string_view name) { log.push_back("+" + std::string(name)); },
      .unload = [&log](std::string_view name) { log.push_back("-" + std::string(name)); },
      .keeps_all = keeps_all};
}

}  // namespace atelier::generate
