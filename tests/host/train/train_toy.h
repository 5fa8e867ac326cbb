// What tests of training share: the toy family with a hook in its denoiser, and what a step needs.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host/plugins/guarded_family.h"
#include "host/run/stop.h"
#include "host/train/train_step.h"
#include "image_toy.h"

namespace atelier::test {

// Is called with each velocity that the denoiser gives, and may change it or throw.
using VelocityHook = std::function<at::Tensor(const at::Tensor& velocity)>;
inline VelocityHook velocity_hook;
// Says which latents of a sample are given; empty: none are.
using GivenHook = std::function<std::optional<GivenLatents>(const Conditioning& cond)>;
inline GivenHook given_hook;
inline int num_ranges_asked = 0;  // calls of sigma_range()

class HookedToy final : public ImageToy {
 public:
  SigmaRange sigma_range(const Detection& denoiser) const override {
    ++num_ranges_asked;
    return ImageToy::sigma_range(denoiser);
  }
  std::unique_ptr<Model> make_model(std::span<const Detection> parts,
                                    const ModelOptions& options) const override {
    struct Hooked final : ToyModel {
      using ToyModel::ToyModel;
      at::Tensor denoise(const DenoiseInputs& in, BlockRunner& runner) override {
        const at::Tensor velocity = ToyModel::denoise(in, runner);
        return velocity_hook ? velocity_hook(velocity) : velocity;
      }
      std::optional<GivenLatents> given(const Conditioning& cond, at::IntArrayRef) const override {
        return given_hook ? given_hook(cond) : std::nullopt;
      }
    };
    return std::make_unique<Hooked>(parts, options, ToyMistakes{});
  }
};

// As the host sees the family of a plugin.
inline const ModelFamily& hooked_toy() {
  static const HookedToy toy;
  static const auto family = plugins::guarded(toy, "toy.so", "0.1.0");
  return *family;
}

// While one lives, the denoiser's velocities go through `hook`.
struct HookScope {
  explicit HookScope(VelocityHook hook) { velocity_hook = std::move(hook); }
  ~HookScope() { velocity_hook = nullptr; }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;
};

// Signals are noted while one lives, and forgotten after it.
class SignalScope {
 public:
  SignalScope() : signals_(std::in_place) {}
  ~SignalScope() {
    signals_.reset();
    const run::StopSignals forgets;
  }
  SignalScope(const SignalScope&) = delete;
  SignalScope& operator=(const SignalScope&) = delete;

 private:
  std::optional<run::StopSignals> signals_;
};

// A model of files whose denoiser is loaded. What is trained: config.trainable_models, config.lora.
struct TrainToy {
  Folder folder;
  order::Training config;
  std::unique_ptr<model::LoadedModel> model;
  progress::Progress progress{progress::Options{.quiet = true}};

  TrainToy() {
    write_toy_model(folder / "model");
    write_toy_component(folder / "model/transformer/model.safetensors", "dit", 1, {}, 0.15);
    config.trainable_models = {"dit"};
    config.learning_rate = 1e-2;
    config.optimizer.eps = 1e-6;
    config.log.tensorboard = false;
    config.output.output_path = folder / "run";
    fs::create_directories(config.output.output_path);
  }
  void open(const std::string& device = "cpu", const std::string& dtype = "float32",
            model::Placement placement = {}) {
    model = model::LoadedModel::open(hooked_toy(), {.model_paths = folder / "model",
                                                    .dtype = dtype,
                                                    .device = device,
                                                    .placement = std::move(placement)});
    model->load_component("dit");
  }
  parameters::Selection selection() {
    report::Problems problems;
    parameters::Selection selection = parameters::select_trained(*model, config, problems);
    problems.throw_if_any();
    return selection;
  }
  void train_lora(int64_t rank = 4) {
    config.trainable_models.clear();
    config.lora.base_models = {"dit"};
    config.lora.target_modules = {"q", "down"};
    config.lora.rank = rank;
  }
  Weight& weight(std::string_view path) {
    return *model->model().component("dit").find_weight(path);
  }
};

// A sample of latents [48, 1, 4, 4], as encoders of that dtype give it.
inline samples::TrainSample toy_sample(int seed, at::ScalarType dtype = at::kFloat) {
  at::manual_seed(seed);
  samples::TrainSample sample;
  sample.target = {.frames = 1};
  sample.cond["prompt_embeds"] = at::randn({5, kToyWidth}).to(dtype);
  sample.cond["latents"] = at::randn({kToyChannels, 1, 4, 4}).to(dtype);
  return sample;
}

// A step of `count` samples in batches of `batch_size`.
inline train::StepData toy_step(int count, int batch_size, int seed = 100,
                                at::ScalarType dtype = at::kFloat) {
  train::StepData data;
  data.plan.samples = count;
  for (int i = 0; i < count; ++i) {
    if (i % batch_size == 0) {
      data.plan.numbers.push_back(static_cast<uint32_t>(data.batches.size()));
      data.batches.emplace_back();
    }
    data.batches.back().push_back({toy_sample(seed + i, dtype), static_cast<uint32_t>(i)});
  }
  return data;
}

// Everything that a step needs.
struct StepBench {
  TrainToy& toy;
  parameters::TrainedTensors trained;
  std::unique_ptr<optim::Optimizer> optimizer;
  train::StepMemory memory;
  samples::Timesteps timesteps;
  train::Objective objective;
  train::TrainStep step;

  explicit StepBench(TrainToy& toy, int64_t total_steps = 10)
      : toy(toy),
        trained(*toy.model, toy.selection(), toy.config, parameters::unplanned_layout(toy.config)),
        optimizer(optim::make_optimizer(trained.groups(), toy.config.optimizer)),
        memory(*toy.model, toy.config, parameters::unplanned_layout(toy.config), trained,
               toy.progress, nullptr),
        timesteps({}, toy.config.timesteps),
        objective(*toy.model, toy.model->stages().denoisers, memory.runner(), timesteps,
                  toy.config.seed),
        step(toy.config, trained, *optimizer, objective, memory, total_steps, nullptr) {}

  // Copies of the trained values.
  NamedTensors values() const {
    NamedTensors copies;
    for (const auto& [name, value] : trained.values()) copies.emplace(name, value.clone());
    return copies;
  }
};

inline bool same(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, value] : a) {
    const auto found = b.find(name);
    if (found == b.end() || !at::equal(value, found->second)) return false;
  }
  return true;
}

}  // namespace atelier::test
