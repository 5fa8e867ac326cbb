// Eight samples with a LoRA of their own in one call of a denoiser, beside one LoRA for all and
// beside a call for each: a Markdown table. Times are the least of the rounds, as what else runs on
// a machine only adds to them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <dlfcn.h>
#include <functional>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/host/sample_scope.h"
#include "atelier/nn/layers.h"
#include "atelier/plugin.h"

#include "host/device/cpu_memory.h"

namespace {

using at::Tensor;
using namespace atelier;

constexpr int64_t kSamples = 8, kTextTokens = 64;

const ModelFamily& open_family(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<AtelierPluginEntry>(dlsym(library, "atelier_plugin"));
  char message[256] = "no entry";
  void* result = entry ? entry()->open(message, sizeof(message)) : nullptr;
  if (!result) throw std::runtime_error(message);
  return *static_cast<ModelFamily*>(result);
}

// A denoiser of random weights, and LoRAs for every linear layer of its blocks.
class Denoiser {
 public:
  Denoiser(const ModelFamily& family, int64_t blocks, int64_t width, int64_t heads, int64_t side,
           at::ScalarType dtype, int64_t rank)
      : dtype_(dtype) {
    std::vector<Detection> parts = family.tiny_parts();
    std::erase_if(parts, [](const Detection& part) { return part.component != "dit"; });
    auto& config = parts.at(0).config;
    const int64_t head = width / heads;
    config["layers"] = blocks, config["width"] = width, config["heads"] = heads;
    config["head_dim"] = head, config["mlp_width"] = 4 * width;
    config["axes"] =
        std::vector<double>{static_cast<double>(head / 8), static_cast<double>(head / 16 * 7),
                            static_cast<double>(head / 16 * 7)};
    model_ = family.make_model(parts, {});
    model_->component("dit").visit_weights([&](const std::string&, Weight& weight) {
      const auto fan = static_cast<double>(weight.numel() / weight.sizes()[0]);
      weight.set((at::randn(weight.sizes()) / std::sqrt(fan)).to(dtype));
    });
    for (Block* block : model_->blocks("dit")) {
      block->visit([&](nn::Module& module) {
        if (auto* layer = dynamic_cast<nn::Linear*>(&module)) add_loras(*layer, rank);
      });
    }
    x_ = at::randn({kSamples, model_->latent_spec().channels, 1, 2 * side, 2 * side}).to(dtype);
    sigma_ = at::full({kSamples}, 0.5);
    for (int64_t s = 0; s < kSamples; ++s)
      prompts_.push_back(family.example_conditioning(parts[0], kTextTokens, dtype));
    for (const Conditioning& prompt : prompts_) cond_.push_back(&prompt);
  }

  Tensor plain() { return denoise(0, kSamples); }
  // All samples have the first LoRA.
  Tensor one_for_all() {
    give(0);
    return denoise(0, kSamples);
  }
  Tensor one_each() {
    std::vector<std::vector<double>> strengths(kSamples, std::vector<double>(kSamples));
    for (size_t s = 0; s < kSamples; ++s) strengths[s][s] = 1.0;
    for (const Loras& of : loras_) of.layer->adapters = of.numbered;
    const ops::SampleScope scope(strengths);
    return denoise(0, kSamples);
  }
  Tensor calls() {
    std::vector<Tensor> velocities;
    for (int64_t s = 0; s < kSamples; ++s) {
      give(static_cast<size_t>(s));
      velocities.push_back(denoise(s, 1));
    }
    return at::cat(velocities);
  }
  void take_loras() {
    for (const Loras& of : loras_) of.layer->adapters.clear();
  }

 private:
  struct Loras {
    nn::Linear* layer;
    std::vector<ops::Adapter> numbered;
  };

  void add_loras(nn::Linear& layer, int64_t rank) {
    Loras& of = loras_.emplace_back(Loras{&layer, {}});
    const double scale = 0.3 / std::sqrt(static_cast<double>(layer.in_features() * rank));
    for (int64_t number = 0; number < kSamples; ++number)
      of.numbered.push_back({.a = at::randn({rank, layer.in_features()}).to(dtype_),
                             .b = at::randn({layer.out_features(), rank}).to(dtype_),
                             .scale = scale,
                             .number = number});
  }
  void give(size_t number) {
    for (const Loras& of : loras_) {
      of.layer->adapters = {of.numbered[number]};
      of.layer->adapters[0].number = -1;
    }
  }
  Tensor denoise(int64_t first, int64_t count) {
    const std::span<const Conditioning* const> cond(cond_);
    return model_->denoise(
        {.x_BCTHW = x_.narrow(0, first, count),
         .sigma_B = sigma_.narrow(0, first, count),
         .cond = cond.subspan(static_cast<size_t>(first), static_cast<size_t>(count))},
        runner_);
  }

  at::ScalarType dtype_;
  std::unique_ptr<Model> model_;
  DirectRunner runner_;
  std::vector<Loras> loras_;
  std::vector<Conditioning> prompts_;
  std::vector<const Conditioning*> cond_;
  Tensor x_, sigma_;
};

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double least(const std::vector<double>& values) {
  return *std::ranges::min_element(values);
}

void measure(const char* name, Denoiser& denoiser, int64_t rank, int rounds) {
  const Tensor each = denoiser.one_each(), alone = denoiser.calls();
  const double error = ((each - alone).abs().max() / alone.abs().max()).item<double>();
  std::vector<double> plain, all, own, calls;
  for (int i = 0; i < rounds; ++i) {  // in turn: the machine does other work
    denoiser.take_loras();
    plain.push_back(seconds_of([&] { denoiser.plain(); }));
    all.push_back(seconds_of([&] { denoiser.one_for_all(); }));
    own.push_back(seconds_of([&] { denoiser.one_each(); }));
    calls.push_back(seconds_of([&] { denoiser.calls(); }));
  }
  std::printf("| %s | %lld | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %.1e |\n", name,
              static_cast<long long>(rank), 1e3 * least(plain), 1e3 * least(all), 1e3 * least(own),
              1e3 * least(calls), least(own) / least(all), least(own) / least(calls), error);
  std::fflush(stdout);
}

}  // namespace

// PLUGIN [ROUNDS]: the library of qwen_image.
int main(int argc, char** argv) try {
  if (argc < 2 || argc > 3) throw std::runtime_error("PLUGIN [ROUNDS]");
  device::keep_freed_memory();  // as the program does
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  const ModelFamily& family = open_family(argv[1]);
  const int rounds = argc == 3 ? std::max(1, std::atoi(argv[2])) : 7;
  std::printf(
      "| model | rank | none, ms | one for all, ms | one each, ms | a call each, ms | one each / "
      "one for all | one each / a call each | error |\n| --- | --- | --- | --- | --- | --- | --- | "
      "--- | --- |\n");
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const bool is_float = dtype == at::kFloat;
    for (const int64_t rank : {16, 32, 64}) {
      Denoiser tiny(family, 2, 96, 3, 8, dtype, rank);
      measure(is_float ? "tiny, float32" : "tiny, bfloat16", tiny, rank, 3 * rounds);
    }
    for (const int64_t rank : {16, 32, 64}) {
      Denoiser middle(family, 2, 1024, 8, 16, dtype, rank);
      measure(is_float ? "middle, float32" : "middle, bfloat16", middle, rank, rounds);
    }
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
