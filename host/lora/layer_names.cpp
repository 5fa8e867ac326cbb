#include "host/lora/layer_names.h"

#include "atelier/error.h"

#include "formats/lora_names.h"
#include "host/files/file_reader.h"
#include "host/lora/lora_writer.h"
#include "host/model/components.h"
#include "host/report/problems.h"

namespace atelier::lora {

using formats::flat_lora_name;
using Owner = formats::LoraLayerName::Owner;

LoraTargets file_targets(model::LoadedModel& model, const model::LoadedPart& part) {
  const std::string& component = part.detection.component;
  if (!model::has_role(model.family(), component, Role::kDenoiser))
    return {component, {}, {}, std::string(spec_name(component)) + "."};
  return model.family().lora_targets(part.detection);
}

LayerNames::LayerNames(model::LoadedModel* model, std::string_view component) : model_(model) {
  const std::string prefix(formats::lora_spelling(Format::kDiffusers).prefix);
  if (model == nullptr) {
    const auto names = formats::text_encoder_names();
    text_encoders_.assign(names.begin(), names.end());
    targets_[default_component_] = {default_component_, {}, {}, prefix};
    for (const std::string_view name : formats::named_components())
      targets_[std::string(name)] = {std::string(name), {}, {}, std::string(name) + "."};
    return;
  }
  for (const ComponentSpec& spec : model->family().components()) {
    if (spec.role == Role::kTextEncoder) text_encoders_.emplace_back(spec.name);
  }
  for (const model::LoadedPart& part : model->parts()) {
    LoraTargets& targets = targets_[part.detection.component] = file_targets(*model, part);
    if (targets.file_prefix.empty()) targets.file_prefix = prefix;
  }
  if (const model::RangedDenoiser* first = model->stages().first())
    default_component_ = first->name();
  if (model->find_part(component) != nullptr) default_component_ = component;
  layers_.emplace(*model);
}

void LayerNames::learn(const LoraFile& file) {
  for (const LoraLayer& layer : file.layers()) {
    const Layer found = find(layer.name);
    if (!found.is_flat) dotted_[found.component].emplace(flat_lora_name(found.path), found.path);
  }
}

LayerNames::Layer LayerNames::from_flat(const std::string& component, std::string_view name) const {
  if (const auto known = dotted_.find(component); known != dotted_.end()) {
    const auto found = known->second.find(name);
    if (found != known->second.end()) return {component, found->second};
  }
  return {component, std::string(name), name.find('_') != std::string_view::npos};
}

std::string LayerNames::text_encoder(size_t number) const {
  return number < text_encoders_.size() ? text_encoders_[number]
                                        : std::string(formats::text_encoder_names()[number]);
}

LayerNames::Layer LayerNames::find(std::string_view name) const {
  if (layers_) {
    if (auto known = layers_->find_name(name, default_component_))
      return {known->component, known->path};
  }
  // Files of some tools have several prefixes: "base_model.model.transformer.".
  for (int i = 0; i < 4; ++i) {
    for (const auto& [component, targets] : targets_) {
      if (component != default_component_ && name.starts_with(component + "."))
        return {component, std::string(name.substr(component.size() + 1))};
    }
    const auto prefix = formats::without_lora_prefix(name);
    if (!prefix || (prefix->is_flat && name.find('.') != std::string_view::npos)) break;
    name = prefix->path;
    if (prefix->is_flat)
      return from_flat(prefix->owner == Owner::kTextEncoder ? text_encoder(prefix->text_encoder)
                                                            : default_component_,
                       name);
  }
  return {default_component_, std::string(name)};
}

void LayerNames::check(const LoraFile& file, bool wants_dots) const {
  if (layers_) layers_->match(file, default_component_);
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
