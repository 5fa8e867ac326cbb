#include "host/lora/targets.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/checkpoint/file_reader.h"
#include "host/checkpoint/weight_binding.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"

namespace atelier::lora {

using checkpoint::LoadedModel;
using checkpoint::LoadedPart;
using formats::quote_and_escape;

namespace {

constexpr std::string_view kWeight = ".weight";
constexpr size_t kShown = 3;  // names in an error

constexpr std::string_view kDenoiserPrefixes[] = {
    "base_model.model.", "transformer.", "model.diffusion_model.", "diffusion_model.", "unet.",
    "pipe.dit.",         "dit.",
};
// Before names whose dots became underscores; the longer of two comes first.
constexpr std::string_view kFlatDenoiserPrefixes[] = {"lora_unet__", "lora_unet_",
                                                      "lora_transformer_", "lycoris_"};
constexpr std::string_view kFlatTextPrefixes[] = {"lora_te1_", "lora_te2_", "lora_te_"};

std::string flat(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string shape_text(int64_t rows, int64_t columns) {
  std::string text = "[";
  text += std::to_string(rows) + ", " + std::to_string(columns) + "]";
  return text;
}

}  // namespace

Targets::Component Targets::table_of(LoadedModel& model, const LoadedPart& part) {
  Component component;
  component.name = part.detection.component;
  for (const ComponentSpec& spec : model.family().components()) {
    if (spec.name != component.name) continue;
    component.is_denoiser = spec.role == "dit";
    component.is_text_encoder = spec.role == "text_encoder";
  }
  component.prefixes.push_back(component.name + ".");
  if (component.is_denoiser) {
    component.prefixes.insert(component.prefixes.end(), std::begin(kDenoiserPrefixes),
                              std::end(kDenoiserPrefixes));
    const std::string own = plugins::guard(model.family().name(), [&] {
      return model.family().lora_targets(part.detection).file_prefix;
    });
    if (!own.empty()) component.prefixes.push_back(own);
  }
  if (component.is_text_encoder) component.prefixes.emplace_back("base_model.model.");

  nn::Module& root = model.model().component(component.name);
  std::map<std::string, nn::Linear*> linears;  // by the path of their weight
  root.visit([&](nn::Module& module) {
    auto* linear = dynamic_cast<nn::Linear*>(&module);
    if (linear != nullptr) linears.emplace(module.path() + std::string(kWeight), linear);
  });
  const checkpoint::WeightBinding binding = plugins::guard(model.family().name(), [&] {
    return checkpoint::bind_weights(model.family().weight_map(part.detection),
                                    part.detection.prefix, part.checkpoint.index(), root);
  });
  // Names of the checkpoint first: where they and the module paths differ, files speak the former.
  for (const checkpoint::BoundWeight& bound : binding.weights) {
    const auto linear = linears.find(bound.path);
    if (linear == linears.end()) continue;
    const std::string path = bound.path.substr(0, bound.path.size() - kWeight.size());
    for (const checkpoint::WeightPiece& piece : bound.pieces) {
      if (!piece.tensor.ends_with(kWeight) || piece.axis > 1) continue;
      std::string name = piece.tensor.substr(part.detection.prefix.size());
      name.resize(name.size() - kWeight.size());
      const std::vector<int64_t>& shape = part.checkpoint.index().find(piece.tensor)->shape;
      if (shape.size() != 2) continue;
      Target& target = component.by_name[name];
      target.component = component.name;
      target.out = shape[0];
      target.in = shape[1];
      target.pieces.push_back(
          {linear->second, path, piece.axis, piece.tensor_start, piece.weight_start, piece.length});
    }
  }
  for (const auto& [weight, linear] : linears) {
    const std::string path = weight.substr(0, weight.size() - kWeight.size());
    component.by_name.emplace(
        path,
        Target{component.name, linear->out_features(), linear->in_features(), {{linear, path}}});
  }
  for (const auto& [name, target] : component.by_name)
    component.by_flat_name.emplace(flat(name), &target);
  return component;
}

Targets::Targets(LoadedModel& model) : family_(model.family().name()) {
  for (const LoadedPart& part : model.parts()) components_.push_back(table_of(model, part));
  std::stable_partition(components_.begin(), components_.end(),
                        [](const Component& component) { return component.is_denoiser; });
}

const Target* Targets::find_in(const Component& component, std::string_view name) {
  // Files of some tools have several prefixes: "base_model.model.transformer.".
  for (int i = 0; i < 4; ++i) {
    if (const auto found = component.by_name.find(name); found != component.by_name.end())
      return &found->second;
    const auto prefix =
        std::find_if(component.prefixes.begin(), component.prefixes.end(),
                     [&](const std::string& text) { return name.starts_with(text); });
    if (prefix == component.prefixes.end()) return nullptr;
    name.remove_prefix(prefix->size());
  }
  return nullptr;
}

const Target* Targets::find(std::string_view name) const {
  const auto find_flat = [&](auto& prefixes, auto is_meant) -> const Target* {
    for (const std::string_view prefix : prefixes) {
      if (!name.starts_with(prefix)) continue;
      for (const Component& component : components_) {
        if (!is_meant(component)) continue;
        const auto found = component.by_flat_name.find(name.substr(prefix.size()));
        if (found != component.by_flat_name.end()) return found->second;
      }
    }
    return nullptr;
  };
  const auto is_denoiser = [](const Component& component) { return component.is_denoiser; };
  const auto is_text = [](const Component& component) { return component.is_text_encoder; };
  if (const Target* target = find_flat(kFlatDenoiserPrefixes, is_denoiser)) return target;
  if (const Target* target = find_flat(kFlatTextPrefixes, is_text)) return target;
  for (const Component& component : components_) {
    if (const Target* target = find_in(component, name)) return target;
  }
  return nullptr;
}

Match Targets::match(const LoraFile& file) const {
  const std::string path = checkpoint::display_path(file.path());
  Match match;
  std::map<const Target*, size_t> named;  // layer of the file that a target was named by
  std::vector<std::string> misshaped;
  std::string first_misshaped;
  for (size_t i = 0; i < file.layers().size(); ++i) {
    const LoraLayer& layer = file.layers()[i];
    const Target* target = find(layer.name);
    if (target == nullptr) {
      match.unmatched.push_back(layer.name);
      continue;
    }
    if (layer.in != target->in || layer.out != target->out) {
      const bool is_down = layer.in != target->in;
      misshaped.push_back(
          "tensor " + quote_and_escape(is_down ? layer.down : layer.up) + ": " +
          (is_down ? shape_text(layer.rank, layer.in) : shape_text(layer.out, layer.rank)) + ", " +
          (is_down ? shape_text(layer.rank, target->in) : shape_text(target->out, layer.rank)) +
          " expected");
      continue;
    }
    const auto [other, is_new] = named.emplace(target, i);
    if (!is_new)
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": " + quote_and_escape(file.layers()[other->second].name) + " and " +
                      quote_and_escape(layer.name) + " are one layer of " + target->component,
                  "the file names a layer in two ways: save it again", "LORA_TWICE");
    match.pairs.push_back({i, target});
  }
  if (!misshaped.empty()) {
    std::string message = path + ": is made for another model: ";
    for (size_t i = 0; i < std::min(misshaped.size(), kShown); ++i)
      message += (i > 0 ? "; " : "") + misshaped[i];
    if (misshaped.size() > kShown)
      message += "; and " + std::to_string(misshaped.size() - kShown) + " more";
    throw Error(ErrorCode::kInvalidArgument, message, "use a LoRA of this model", "LORA_SHAPE");
  }
  if (match.pairs.empty())
    throw Error(ErrorCode::kInvalidArgument,
                path + ": none of its " + std::to_string(file.layers().size()) +
                    " layers is one of " + family_ + ": " +
                    report::list_names(match.unmatched, kShown),
                "use a LoRA of this model", "LORA_NO_MATCH");
  match.unmatched.insert(match.unmatched.end(), file.unknown().begin(), file.unknown().end());
  return match;
}

}  // namespace atelier::lora
