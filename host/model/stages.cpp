#include "host/model/stages.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "formats/glob.h"

namespace atelier::model {
namespace {

constexpr std::string_view kPrompt = "prompt";

bool contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const InputSpec* find_role(std::span<const InputSpec> inputs, InputRole role) {
  const auto found = std::ranges::find(inputs, role, &InputSpec::role);
  return found == inputs.end() ? nullptr : &*found;
}

}  // namespace

std::vector<EncodeStage> encode_stages(const ModelFamily& family, std::string_view variant) {
  std::vector<EncodeStage> stages;
  for (const EncodeStage& stage : family.encode_stages()) {
    if (formats::glob_match(stage.variants, variant)) stages.push_back(stage);
  }
  return stages;
}

std::string_view variant_of(const LoadedModel& model) {
  const LoadedPart* denoiser = model.denoiser();
  return denoiser != nullptr ? std::string_view(denoiser->detection.variant) : std::string_view();
}

std::vector<EncodeStage> encode_stages(const LoadedModel& model) {
  return encode_stages(model.family(), variant_of(model));
}

bool reads(const EncodeStage& stage, std::string_view input) {
  return contains(stage.inputs, input);
}

bool uses(const EncodeStage& stage, std::string_view component) {
  return contains(stage.components, component);
}

bool encodes(const ModelFamily& family, std::string_view component) {
  return std::ranges::any_of(family.encode_stages(),
                             [&](const EncodeStage& stage) { return uses(stage, component); });
}

bool is_prompted(const EncodeStage& stage) {
  return reads(stage, kPrompt);
}

const InputSpec* target_input(std::span<const InputSpec> inputs) {
  return find_role(inputs, InputRole::kTarget);
}

const InputSpec* start_input(std::span<const InputSpec> inputs) {
  return find_role(inputs, InputRole::kStart);
}

const EncodeStage* target_stage(std::span<const EncodeStage> stages,
                                std::span<const InputSpec> inputs) {
  const InputSpec* target = target_input(inputs);
  if (target == nullptr) return nullptr;
  const auto found = std::ranges::find_if(
      stages, [&](const EncodeStage& stage) { return reads(stage, target->name); });
  return found == stages.end() ? nullptr : &*found;
}

bool only_encodes(const ComponentSpec& component) {
  return component.role == Role::kTextEncoder || component.role == Role::kImageEncoder;
}

std::string encoded_by(const EncodeStage& stage, std::span<const InputSpec> inputs) {
  const InputSpec* target = target_input(inputs);
  if (target != nullptr && reads(stage, target->name)) return "images";
  return is_prompted(stage) ? "texts" : std::string(stage.name);
}

Inputs inputs_of(const EncodeStage& stage, const Inputs& inputs) {
  Inputs read;
  for (const auto& [name, value] : inputs) {
    if (reads(stage, name)) read.emplace(name, value);
  }
  return read;
}

Inputs on_device(Inputs values, at::Device device) {
  for (auto& [name, value] : values) {
    if (auto* tensor = std::get_if<at::Tensor>(&value)) *tensor = tensor->to(device);
    if (auto* tensors = std::get_if<std::vector<at::Tensor>>(&value)) {
      for (at::Tensor& tensor : *tensors) tensor = tensor.to(device);
    }
  }
  return values;
}

EncodeInputs negative_of(EncodeInputs in, const std::string& prompt) {
  in.values.insert_or_assign(std::string(kPrompt), prompt);
  in.is_negative = true;
  return in;
}

at::Tensor decode_whole(Model& model, const at::Tensor& latents_BCTHW, BlockRunner& runner,
                        at::Device device) {
  std::vector<at::Tensor> frames;
  model.decode(latents_BCTHW, runner,
               [&](const at::Tensor& pixels) { frames.push_back(pixels.to(device)); });
  return frames.size() == 1 ? frames.front() : at::cat(frames, 2);
}

}  // namespace atelier::model
