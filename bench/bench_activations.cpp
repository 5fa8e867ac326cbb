// Bytes of activations over budgets: one JSON line for each. Called by activation_compare.py.
#include <cmath>
#include <cstdio>
#include <ctime>
#include <dlfcn.h>
#include <random>
#include <stdexcept>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/nn/layers.h"
#include "atelier/plugin.h"

#include "memory/activation_runner.h"
#include "memory/live_bytes.h"

namespace {

using at::Tensor;
using namespace atelier;
using namespace atelier::memory;
using Kind = ActivationBudget::Kind;

constexpr int64_t kRank = 16;

const ModelFamily& open_family(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  const auto entry = reinterpret_cast<AtelierPluginEntry>(dlsym(library, "atelier_plugin"));
  char message[256] = "no entry";
  void* result = entry ? entry()->open(message, sizeof(message)) : nullptr;
  if (!result) throw std::runtime_error(message);
  return *static_cast<ModelFamily*>(result);
}

// A denoiser of random weights with a LoRA on every linear layer of its blocks.
struct Denoiser {
  std::unique_ptr<Model> model;
  Tensors trained;
  Tensor x, sigma;
  Conditioning prompt;

  Denoiser(const ModelFamily& family, int64_t blocks, int64_t width, int64_t heads, int64_t side,
           int64_t tokens) {
    std::vector<Detection> parts = family.tiny_parts();
    std::erase_if(parts, [](const Detection& part) { return part.component != "dit"; });
    auto& config = parts.at(0).config;
    const int64_t head = width / heads;
    config["layers"] = blocks;
    config["width"] = width;
    config["heads"] = heads;
    config["head_dim"] = head;
    config["mlp_width"] = 4 * width;
    config["axes"] =
        std::vector<double>{static_cast<double>(head / 8), static_cast<double>(head / 16 * 7),
                            static_cast<double>(head / 16 * 7)};
    model = family.make_model(parts, {});
    model->component("dit").visit_weights([](const std::string&, Weight& weight) {
      const auto fan = static_cast<double>(weight.numel() / weight.sizes()[0]);
      weight.set(at::randn(weight.sizes()) / std::sqrt(fan));
    });
    for (Block* block : model->blocks("dit")) {
      block->visit([](nn::Module& module) {
        auto* layer = dynamic_cast<nn::Linear*>(&module);
        if (layer == nullptr) return;
        layer->adapters.push_back(
            {(at::randn({kRank, layer->in_features()}) * 0.02).requires_grad_(),
             at::zeros({layer->out_features(), kRank}).requires_grad_(), 1.0});
      });
      for (const Tensor& t : trained_tensors(*block)) trained.push_back(t);
    }
    x = at::randn({1, model->latent_spec().channels, 1, 2 * side, 2 * side});
    sigma = at::full({1}, 0.5);
    prompt = family.example_conditioning(parts[0], tokens, at::kFloat);
  }

  Tensor forward(BlockRunner& runner) {
    const Conditioning* one[] = {&prompt};
    return model->denoise({x, sigma, one}, runner);
  }
};

// Bytes after the forward pass, and the most until the gradients are there.
std::pair<int64_t, int64_t> measure(Denoiser& net, BlockRunner& runner) {
  LiveBytes bytes(at::kCPU);
  const Tensor y = net.forward(runner);
  const int64_t held = bytes.now();
  torch::autograd::grad({y.square().sum()}, net.trained, {}, false, false, true);
  return {held, bytes.peak()};
}

void print(const char* name, double budget, std::pair<int64_t, int64_t> bytes, double seconds) {
  std::printf(
      "{\"name\": \"%s\", \"budget\": %g, \"saved\": %lld, \"peak\": %lld, \"extra\": %g}\n", name,
      budget, static_cast<long long>(bytes.first), static_cast<long long>(bytes.second), seconds);
  std::fflush(stdout);
}

// Milliseconds that a plan of 60 blocks with 12 outputs takes at most, over 21 budgets.
void time_plans() {
  std::mt19937_64 random(5);
  const auto costs = std::make_shared<BlockCosts>();
  for (int i = 0; i < 12; ++i) {  // bytes without a common divisor
    costs->operators.push_back({"op", 40'000'001 + static_cast<int64_t>(random() % 90'000'000),
                                1e-3 + 1e-12 * static_cast<double>(random() % 2'000'000'000)});
    costs->seconds += costs->operators.back().seconds;
  }
  costs->held_bytes = 50'000'000;
  costs->working_bytes = 1'500'000'000;
  costs->whole_bytes = 1'200'000'000;
  const std::vector<std::shared_ptr<const BlockCosts>> runs(60, costs);
  for (const double rate : {0.0, 25e9}) {
    const OffloadLimits limits = {.host_bytes = rate > 0 ? int64_t{100} << 30 : 0,
                                  .bytes_per_second = rate};
    double most = 0;
    for (int i = 0; i <= 20; ++i) {
      const std::clock_t start = std::clock();  // of this process: others compute too
      plan_activations(runs, {.kind = Kind::kFraction, .fraction = i / 20.0 * 0.999}, 0, 0, 0,
                       limits);
      most = std::max(most, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    std::printf("{\"name\": \"plan%s\", \"milliseconds\": %g}\n", rate > 0 ? "_offload" : "", most);
  }
}

}  // namespace

// PLUGIN BLOCKS WIDTH HEADS SIDE TOKENS: tokens of the image along a side, and of the prompt.
int main(int argc, char** argv) try {
  if (argc != 7) throw std::runtime_error("PLUGIN BLOCKS WIDTH HEADS SIDE TOKENS");
  LiveBytes::install();
  at::manual_seed(1);
  const auto number = [&](int i) { return static_cast<int64_t>(std::atoll(argv[i])); };
  Denoiser net(open_family(argv[1]), number(2), number(3), number(4), number(5), number(6));
  DirectRunner direct;
  print("none", 1, measure(net, direct), 0);
  RecomputeRunner recompute(direct);
  print("checkpoint", 0, measure(net, recompute), 0);
  for (int i = 0; i <= 20; ++i) {
    const ActivationBudget budget = {.kind = Kind::kFraction, .fraction = i / 20.0};
    double seconds = 0;
    ActivationRunner runner(direct, budget, at::kCPU,
                            [&](const ActivationPlan& plan) { seconds = plan.extra_seconds; });
    measure(net, runner);
    runner.begin_pass();
    const std::pair<int64_t, int64_t> bytes = measure(net, runner);
    print("budget", budget.fraction, bytes, seconds);
  }
  time_plans();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
