#include "host/lora/layer_names.h"

#include <algorithm>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/lora/targets.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"

namespace atelier::lora {

namespace {

constexpr std::string_view kDenoiserPrefixes[] = {
    "base_model.model.", "transformer.", "model.diffusion_model.", "diffusion_model.", "unet.",
    "pipe.dit.",         "dit.",
};
// Before names whose dots became underscores; the longer of two comes first.
constexpr std::string_view kFlatDenoiserPrefixes[] = {"lora_unet__", "lora_unet_",
                                                      "lora_transformer_", "lycoris_"};
struct FlatText {
  std::string_view prefix;
  const char* component;
};
constexpr FlatText kFlatText[] = {{"lora_te_", "text_encoder"},
                                  {"lora_te1_", "text_encoder"},
                                  {"lora_te2_", "text_encoder_2"},
                                  {"lora_te3_", "text_encoder_3"}};
// Components that files name by their names, where no model says which there are.
constexpr const char* kOthers[] = {"text_encoder", "text_encoder_2", "text_encoder_3",
                                   "transformer_2", "vae"};

std::string flat(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string without_parameter(const std::string& name) {
  for (const std::string_view end : {".weight", ".bias"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  return name;
}

}  // namespace

LayerNames::LayerNames(model::LoadedModel* model) : model_(model) {
  if (model == nullptr) {
    targets_[denoiser_] = {denoiser_, {}, {}, "transformer."};
    for (const char* name : kOthers) targets_[name] = {name, {}, {}, std::string(name) + "."};
    return;
  }
  const model::LoadedPart* denoiser = model->denoiser();
  for (const model::LoadedPart& part : model->parts()) {
    const std::string& component = part.detection.component;
    targets_[component] = {component, {}, {}, component + "."};
    if (&part == denoiser) {
      denoiser_ = component;
      targets_[component] = plugins::guard(
          model->family().name(), [&] { return model->family().lora_targets(part.detection); });
      if (targets_[component].file_prefix.empty()) targets_[component].file_prefix = "transformer.";
    }
    auto& dotted = dotted_[component];
    for (const auto& [tensor, meta] : part.checkpoint.index().tensors()) {
      if (!tensor.starts_with(part.detection.prefix)) continue;
      const std::string path = without_parameter(tensor.substr(part.detection.prefix.size()));
      dotted.emplace(flat(path), path);
    }
    const auto add = [&](const std::string& weight) {
      const std::string path = without_parameter(weight);
      dotted.emplace(flat(path), path);
    };
    model->model().component(component).visit_weights(
        [&](const std::string& weight, Weight&) { add(weight); });
    if (&part != denoiser) continue;
    const std::vector<std::string> spellings = plugins::guard(
        model->family().name(), [&] { return model->family().spellings(part.detection); });
    for (const std::string& spelling : spellings) {
      for (const auto& [name, target] : spelled_targets(*model, part, spelling)) add(name);
    }
  }
}

void LayerNames::learn(const LoraFile& file) {
  for (const LoraLayer& layer : file.layers()) {
    const Layer found = find(layer.name);
    if (!found.is_flat) dotted_[found.component].emplace(flat(found.path), found.path);
  }
}

LayerNames::Layer LayerNames::from_flat(const std::string& component, std::string_view name) const {
  if (const auto known = dotted_.find(component); known != dotted_.end()) {
    const auto found = known->second.find(name);
    if (found != known->second.end()) return {component, found->second};
  }
  return {component, std::string(name), name.find('_') != std::string_view::npos};
}

LayerNames::Layer LayerNames::find(std::string_view name) const {
  if (name.find('.') == std::string_view::npos) {
    for (const std::string_view prefix : kFlatDenoiserPrefixes) {
      if (name.starts_with(prefix)) return from_flat(denoiser_, name.substr(prefix.size()));
    }
    for (const FlatText& of : kFlatText) {
      if (name.starts_with(of.prefix))
        return from_flat(of.component, name.substr(of.prefix.size()));
    }
  }
  // Files of some tools have several prefixes: "base_model.model.transformer.".
  for (int i = 0; i < 4; ++i) {
    for (const auto& [component, targets] : targets_) {
      if (component != denoiser_ && name.starts_with(component + "."))
        return {component, std::string(name.substr(component.size() + 1))};
    }
    const auto known = dotted_.find(denoiser_);
    const bool is_known = known != dotted_.end() && known->second.contains(flat(std::string(name)));
    const auto* prefix =
        std::find_if(std::begin(kDenoiserPrefixes), std::end(kDenoiserPrefixes),
                     [&](std::string_view text) { return name.starts_with(text); });
    if (is_known || prefix == std::end(kDenoiserPrefixes)) break;
    name.remove_prefix(prefix->size());
  }
  return {denoiser_, std::string(name)};
}

void LayerNames::check(const LoraFile& file, bool wants_dots) const {
  if (model_ != nullptr) Targets(*model_).match(file);
  if (!wants_dots) return;
  std::vector<std::string> flat_names;
  for (const LoraLayer& layer : file.layers()) {
    if (find(layer.name).is_flat) flat_names.push_back(layer.name);
  }
  if (flat_names.empty()) return;
  const std::string path = files::display_path(file.path());
  if (model_ != nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                path + ": " + std::to_string(flat_names.size()) + " of its names are no layer of " +
                    family() + ": " + report::list_names(flat_names, 3),
                "--lora_format kohya keeps them as they are", "LORA_NAMES");
  throw Error(ErrorCode::kInvalidArgument,
              path + ": what the underscores of its names stand for cannot be told: " +
                  report::list_names(flat_names, 3),
              "pass --plugin and --model_paths to lora convert: the model's names tell",
              "LORA_NAMES");
}

std::string LayerNames::family() const {
  return model_ == nullptr ? std::string() : std::string(model_->family().name());
}

}  // namespace atelier::lora
