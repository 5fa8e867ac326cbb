#include "host/model/stages.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/upload.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/model/components.h"
#include "host/model/config_check.h"

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

// Clips are bytes until they are there; their values are then those of media::to_pixels().
at::Tensor on_device(const at::Tensor& given, at::Device device) {
  const at::Tensor tensor = ops::upload(given, device);
  if (tensor.scalar_type() != at::kByte) return tensor;
  return tensor.to(at::kFloat).div_(255.0).mul_(2.0).sub_(1.0);
}

Inputs on_device(Inputs values, at::Device device) {
  for (auto& [name, value] : values) {
    if (auto* tensor = std::get_if<at::Tensor>(&value)) *tensor = on_device(*tensor, device);
    if (auto* tensors = std::get_if<std::vector<at::Tensor>>(&value)) {
      for (at::Tensor& tensor : *tensors) tensor = on_device(tensor, device);
    }
  }
  return values;
}

}  // namespace

const EncodeStage* Stages::target_stage() const {
  const auto found =
      std::ranges::find_if(encoding, [this](const EncodeStage& stage) { return is_target(stage); });
  return found == encoding.end() ? nullptr : &*found;
}

bool Stages::is_target(const EncodeStage& stage) const {
  return target_input != nullptr && reads(stage, target_input->name);
}

EncodeInputs Stages::target_inputs(const at::Tensor& pixels_CTHW) const {
  InputValue value = pixels_CTHW;
  if (target_input->max_count != 1) {
    value = pixels_CTHW.unbind(1);
  } else if (target_input->kind != InputKind::kVideo) {
    value = pixels_CTHW.select(1, 0);
  }
  return {.stage = target_stage()->name,
          .values = {{std::string(target_input->name), std::move(value)}},
          .target = {pixels_CTHW.size(1), pixels_CTHW.size(2), pixels_CTHW.size(3)},
          .fps = fps};
}

std::vector<std::string> Stages::controls_beside(
    std::string_view denoiser, const std::function<bool(std::string_view input)>& is_given) const {
  std::vector<std::string> names;
  for (const PresentComponent& component : components) {
    const ComponentSpec& spec = component.spec;
    if (spec.role != Role::kControl || spec.beside != denoiser) continue;
    bool has_inputs = false, runs = false;
    for (const InputSpec& input : inputs) {
      if (!is_for(input, spec, encoding)) continue;
      has_inputs = true;
      runs |= is_given(input.name);
    }
    if (runs || !has_inputs) names.push_back(component.name);
  }
  return names;
}

std::vector<std::string> Stages::controls_beside(std::string_view denoiser,
                                                 const Inputs& given) const {
  return controls_beside(denoiser, [&](std::string_view input) { return given.contains(input); });
}

namespace {

// Two experts change where their folder says it: at boundary_ratio of its model_index.json, in the
// place of the level that their family knows of published ones.
void take_boundary(std::span<const LoadedPart> parts, std::vector<RangedDenoiser>& denoisers) {
  if (denoisers.size() != 2) return;
  SigmaRange& noisy = denoisers.front().range;
  SigmaRange& clean = denoisers.back().range;
  const auto part = std::ranges::find(parts, denoisers.front().name(), [](const LoadedPart& one) {
    return one.detection.component;
  });
  for (const FolderFile& file : folder_files(part->model_folder())) {
    constexpr const char* kBoundary = "boundary_ratio";
    const TensorIndex index({}, file.fields);
    if (file.prefix != "model_index." || index.has_null(kBoundary)) continue;
    const std::optional<double> boundary = index.config_real(kBoundary);
    if (!boundary) continue;
    if (!(*boundary > clean.low && *boundary < noisy.high))
      throw Error(ErrorCode::kInvalidArgument,
                  formats::quote_and_escape(file.path) + ": boundary_ratio is " +
                      std::to_string(*boundary) + ", and experts change between " +
                      std::to_string(clean.low) + " and " + std::to_string(noisy.high),
                  "mend the file");
    noisy.low = clean.high = *boundary;
  }
}

}  // namespace

Stages stages_of(const ModelFamily& family, std::span<const LoadedPart> parts) {
  Stages stages;
  for (const LoadedPart& part : parts) {
    if (!has_role(family, part.detection.component, Role::kDenoiser)) continue;
    stages.denoisers.push_back({part.detection, family.sigma_range(part.detection)});
  }
  std::ranges::stable_sort(stages.denoisers, std::greater(),
                           [](const RangedDenoiser& denoiser) { return denoiser.range.high; });
  take_boundary(parts, stages.denoisers);
  if (!stages.denoisers.empty())
    stages.fps = family.media_defaults(stages.denoisers.front().part).fps;
  if (stages.first() != nullptr) {
    stages.variant = stages.first()->part.variant;
  } else {
    const auto hinted = std::ranges::find_if(
        parts, [](const LoadedPart& part) { return !part.hint.variant.empty(); });
    if (hinted != parts.end()) stages.variant = hinted->hint.variant;
  }
  for (const ComponentSpec& component : family.components()) {
    if (!holds_for(component, stages.variant)) continue;
    if (component.role == Role::kTokenizer)
      stages.components.push_back({std::string(component.name), component});
    for (const LoadedPart& part : parts) {
      if (spec_name(part.detection.component) == component.name)
        stages.components.push_back({part.detection.component, component});
    }
  }
  stages.encoding = encode_stages(family, stages.variant);
  stages.inputs = family.inputs();
  stages.target_input = target_input(stages.inputs);
  return stages;
}

std::string saved_name(const ModelFamily& family, const Stages& stages,
                       std::string_view component) {
  const std::string own(component);
  const ComponentSpec& spec = *find_component(family, component);
  const bool is_control = spec.role == Role::kControl;
  if (stages.denoisers.size() != 1) return own;
  const Detection& alone = stages.denoisers.front().part;
  if (alone.component != (is_control ? spec.beside : component)) return own;
  const std::string said = family.lora_targets(alone).component;
  if (said == alone.component || !(said.empty() || has_role(family, said, Role::kDenoiser)))
    return own;
  if (!is_control || said.empty()) return said;
  const auto specs = family.components();
  const auto twin = std::ranges::find(specs, said, &ComponentSpec::beside);
  return twin == specs.end() ? own : std::string(twin->name);
}

const RangedDenoiser& denoiser_at(std::span<const RangedDenoiser> denoisers, float sigma) {
  for (const RangedDenoiser& denoiser : denoisers) {
    if (sigma >= static_cast<float>(denoiser.range.low) &&
        sigma <= static_cast<float>(denoiser.range.high))
      return denoiser;
  }
  throw Error(ErrorCode::kNotFound,
              "no denoiser is loaded for noise level " + std::to_string(sigma),
              "add its files to --model_paths");
}

std::vector<EncodeStage> encode_stages(const ModelFamily& family, std::string_view variant) {
  std::vector<EncodeStage> stages;
  for (const EncodeStage& stage : family.encode_stages()) {
    const auto same = std::ranges::find(stages, stage.name, &EncodeStage::name);
    if (same == stages.end() && formats::any_glob_matches(stage.variants, variant))
      stages.push_back(stage);
  }
  return stages;
}

bool reads(const EncodeStage& stage, std::string_view input) {
  return contains(stage.inputs, input);
}

bool uses(const EncodeStage& stage, const ComponentSpec& component) {
  return component.role != Role::kControl && contains(stage.components, component.name);
}

bool encodes(const ModelFamily& family, const ComponentSpec& component) {
  return std::ranges::any_of(family.encode_stages(),
                             [&](const EncodeStage& stage) { return uses(stage, component); });
}

bool is_for(const InputSpec& input, const ComponentSpec& control,
            std::span<const EncodeStage> stages) {
  if (control.role != Role::kControl) return false;
  return input.per_instance_of == control.name ||
         std::ranges::any_of(stages, [&](const EncodeStage& stage) {
           return reads(stage, input.name) && contains(stage.components, control.name);
         });
}

bool reads_texts(const EncodeStage& stage, const ModelFamily& family) {
  return std::ranges::any_of(family.components(), [&](const ComponentSpec& component) {
    const bool is_of_texts =
        component.role == Role::kTextEncoder || component.role == Role::kTokenizer;
    return is_of_texts && uses(stage, component);
  });
}

bool is_prompted(const EncodeStage& stage) {
  return reads(stage, kPrompt);
}

bool runs_per_branch(const EncodeStage& stage) {
  return stage.per_branch || is_prompted(stage);
}

const InputSpec* target_input(std::span<const InputSpec> inputs) {
  return find_role(inputs, InputRole::kTarget);
}

const InputSpec* start_input(std::span<const InputSpec> inputs) {
  return find_role(inputs, InputRole::kStart);
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

EncodeInputs negative_of(EncodeInputs in, const std::string& prompt, const Inputs& given,
                         std::span<const InputSpec> inputs) {
  if (const auto own = in.values.find(kPrompt); own != in.values.end()) own->second = prompt;
  for (const InputSpec& input : inputs) {
    const auto positive = in.values.find(input.negative_of);
    if (input.negative_of.empty() || positive == in.values.end()) continue;
    const auto negative = given.find(input.name);
    if (negative != given.end()) {
      positive->second = negative->second;
    } else if (auto* const texts = std::get_if<std::vector<std::string>>(&positive->second)) {
      texts->assign(texts->size(), std::string());
    } else {
      positive->second = std::string();
    }
  }
  in.is_negative = true;
  return in;
}

Conditioning encode(Model& model, EncodeInputs in, BlockRunner& runner, at::Device device) {
  in.values = on_device(std::move(in.values), device);
  return model.encode(in, runner);
}

void decode(Model& model, const at::Tensor& latents_1CTHW, BlockRunner& runner, at::Device device,
            const SampleSink& sink) {
  model.decode(latents_1CTHW, runner, [&](const at::Tensor& pixels_BCTHW) {
    sink(pixels_BCTHW[0].to(device, at::kFloat));
  });
}

at::Tensor decode_whole(Model& model, const at::Tensor& latents_BCTHW, BlockRunner& runner,
                        at::Device device) {
  std::vector<at::Tensor> frames;
  model.decode(latents_BCTHW, runner,
               [&](const at::Tensor& pixels) { frames.push_back(pixels.to(device)); });
  return frames.size() == 1 ? frames.front() : at::cat(frames, 2);
}

}  // namespace atelier::model
