// A small model of files, and LoRA files for it, for tests of host/lora.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/block.h"

#include "host/files/safetensors_writer.h"
#include "host/model/model_loader.h"
#include "host/weights/component_writer.h"
#include "tests/support/files.h"
#include "tests/support/tensors.h"
#include "tests/support/toy_family.h"

namespace atelier::test {

// Largest difference over the largest value of `b`.
inline double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

inline const ToyFamily& toy_family() {
  static const ToyFamily family;
  return family;
}

// Random weights of the denoiser and the VAE, in their published spelling.
inline void write_two_part_model(const std::string& folder) {
  for (const Detection& part : toy_family().tiny_parts()) {
    if (part.component == "text_encoder") continue;
    const auto model = toy_family().make_model({&part, 1}, {});
    at::manual_seed(7);
    model->component(part.component).visit_weights([&](const std::string&, Weight& weight) {
      weight.set(at::randn(weight.sizes()) * 0.2);
    });
    fs::create_directories(folder);
    weights::save_component(model->component(part.component), toy_family().weight_map(part), "",
                            folder + "/" + part.component + ".safetensors", {});
  }
}

inline std::unique_ptr<model::LoadedModel> open_toy(const std::string& folder,
                                                    const std::string& dtype = "float32",
                                                    model::Placement placement = {}) {
  return model::LoadedModel::open(
      toy_family(),
      {.model_paths =
           nlohmann::json({folder + "/dit.safetensors", folder + "/vae.safetensors"}).dump(),
       .dtype = dtype,
       .device = "cpu",
       .components = {"dit", "vae"},
       .placement = std::move(placement)});
}

// The two factors of one layer.
struct Factors {
  std::string layer;
  at::Tensor down, up;
};

inline Factors random_factors(const std::string& layer, int64_t in, int64_t out, int64_t rank) {
  return {layer, at::randn({rank, in}) * 0.3, at::randn({out, rank}) * 0.3};
}

// Random factors of layers that the toy's denoiser has, whole, cut and joined.
inline std::vector<Factors> toy_factors(int64_t rank, uint64_t seed) {
  at::manual_seed(seed);
  return {random_factors("blocks.0.qkv", 32, 96, rank),
          random_factors("blocks.1.value", 32, 32, rank),
          random_factors("blocks.1.down", 32, 32, rank), random_factors("embed", 48, 32, rank)};
}

// As peft spells it.
inline void write_lora(const std::string& path, const std::vector<Factors>& factors,
                       const std::string& prefix = "transformer.", double alpha = 0) {
  NamedTensors tensors;
  for (const Factors& of : factors) {
    tensors.emplace(prefix + of.layer + ".lora_A.weight", of.down);
    tensors.emplace(prefix + of.layer + ".lora_B.weight", of.up);
    if (alpha != 0) tensors.emplace(prefix + of.layer + ".alpha", at::tensor(alpha, at::kFloat));
  }
  files::write_safetensors(path, tensors);
}

// What the denoiser says on fixed latents; loads its weights.
inline at::Tensor toy_velocity(model::LoadedModel& model) {
  const at::NoGradGuard no_grad;
  model.load_component("dit");
  at::Generator generator = at::detail::createCPUGenerator(3);
  const at::Tensor x = at::randn({2, kToyChannels, 1, 4, 4}, generator, at::kFloat);
  const at::Tensor prompt = at::randn({5, kToyWidth}, generator, at::kFloat);
  const Conditioning cond = {{"prompt_embeds", prompt.to(model.dtype())}};
  const Conditioning* both[] = {&cond, &cond};
  return model.model().denoise({x.to(model.dtype()), at::tensor({0.25f, 0.75f}), both},
                               model.runner());
}

// The velocity of a model whose published weights `change` has changed.
template <class Change>
at::Tensor changed_velocity(const std::string& folder, Change change) {
  const Folder changed;
  const auto file = files::Checkpoint::open("dit", {folder + "/dit.safetensors"});
  NamedTensors tensors;
  for (const auto& [name, meta] : file.index().tensors()) tensors.emplace(name, file.read(name));
  change(tensors);
  files::write_safetensors(changed / "dit.safetensors", tensors);
  fs::copy_file(folder + "/vae.safetensors", changed / "vae.safetensors");
  return toy_velocity(*open_toy(changed.path()));
}

// The velocity of a model whose published weights are W + scale * up * down, for all `factors`.
inline at::Tensor merged_velocity(const std::string& folder, const std::vector<Factors>& factors,
                                  const std::vector<double>& scales) {
  return changed_velocity(folder, [&](NamedTensors& tensors) {
    for (size_t i = 0; i < factors.size(); ++i) {
      tensors.at(factors[i].layer + ".weight")
          .add_(at::mm(factors[i].up, factors[i].down), scales[i]);
    }
  });
}

}  // namespace atelier::test
