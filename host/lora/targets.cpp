#include "host/lora/targets.h"

#include <algorithm>
#include <optional>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/plugins/guard.h"
#include "host/report/problems.h"
#include "host/weights/published_tensors.h"
#include "host/weights/weight_binding.h"

namespace atelier::lora {

using formats::quote_and_escape;
using model::LoadedModel;
using model::LoadedPart;

namespace {

constexpr std::string_view kEndings[] = {".weight", ".bias"};
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

// "blocks.0.up" of "blocks.0.up.weight"; nullopt for names that end otherwise.
std::optional<std::string> layer_of(const std::string& name) {
  for (const std::string_view ending : kEndings) {
    if (name.ends_with(ending)) return name.substr(0, name.size() - ending.size());
  }
  return std::nullopt;
}

void set_shape(Target& target, const std::vector<int64_t>& shape) {
  target.shape = shape;
  target.out = shape.empty() ? 1 : shape[0];
  target.in = target.out == 0 ? 0 : c10::multiply_integers(shape) / target.out;
}

// The linear layers of a component, by their matrices.
class Linears {
 public:
  explicit Linears(nn::Module& root) {
    root.visit([&](nn::Module& module) {
      auto* linear = dynamic_cast<nn::Linear*>(&module);
      if (linear != nullptr) by_weight_.emplace(linear->weight.get(), linear);
    });
  }
  // Null when the weight is no such matrix.
  nn::Linear* find(const Weight& weight) const {
    const auto found = by_weight_.find(&weight);
    return found == by_weight_.end() ? nullptr : found->second;
  }

 private:
  std::map<const Weight*, nn::Linear*> by_weight_;
};

// "tensor X: [2, 64], [2, 32] expected" where a layer's addition does not fit its target; empty
// where it does.
std::string misfit(const LoraLayer& layer, const Target& target) {
  const auto text = [](const std::string& tensor, const std::vector<int64_t>& is,
                       const std::vector<int64_t>& expected) {
    return "tensor " + quote_and_escape(tensor) + ": " + c10::str(at::IntArrayRef(is)) + ", " +
           c10::str(at::IntArrayRef(expected)) + " expected";
  };
  if (layer.shape == target.shape) return {};
  if (layer.form == LayerForm::kLora || layer.form == LayerForm::kLoha) {
    if (layer.in != target.in)
      return text(layer.down, {layer.rank, layer.in}, {layer.rank, target.in});
    return text(layer.up, {layer.out, layer.rank}, {target.out, layer.rank});
  }
  return text(layer.any_tensor(), layer.shape, target.shape);
}

// DoRA's lengths are of whole rows or columns of the named matrix: where the model keeps it as
// several layers, those must not be cut.
void check_magnitude(const std::string& path, const LoraLayer& layer, const Target& target) {
  if (layer.magnitude.empty()) return;
  for (const TargetPiece& piece : target.pieces) {
    if (piece.axis < 0 || piece.axis == layer.magnitude_axis) continue;
    if (piece.length == target.shape[static_cast<size_t>(piece.axis)]) continue;
    throw Error(ErrorCode::kUnsupported,
                path + ": tensor " + quote_and_escape(layer.magnitude) +
                    ": DoRA over several layers of " + target.component + " is not supported",
                "merge it into the model in the program that it was made with", "LORA_KIND");
  }
}

}  // namespace

NamedTargets spelled_targets(LoadedModel& model, const LoadedPart& part,
                             const std::string& spelling) {
  nn::Module& root = model.model().component(part.detection.component);
  const Linears linears(root);
  const bool is_own = spelling == part.detection.spelling;
  Detection detection = part.detection;
  detection.spelling = spelling;
  if (!is_own) detection.prefix.clear();
  return plugins::guard(model.family().name(), [&] {
    const WeightMap rules = model.family().weight_map(detection);
    // Where no checkpoint has this spelling, the table says what one would hold.
    const TensorIndex index =
        is_own ? part.checkpoint.index() : weights::published_index(root, rules);
    const auto binding = weights::bind_weights(rules, detection.prefix, index, root);
    NamedTargets targets;
    for (const weights::BoundWeight& bound : binding.weights) {
      const std::optional<std::string> path = layer_of(bound.path);
      if (!path) continue;
      for (const weights::WeightPiece& piece : bound.pieces) {
        const std::string name = piece.tensor.substr(detection.prefix.size());
        if (!layer_of(name)) continue;
        Target& target = targets[name];
        target.component = detection.component;
        set_shape(target, index.find(piece.tensor)->shape);
        target.pieces.push_back({bound.weight, linears.find(*bound.weight), *path, piece.axis,
                                 piece.tensor_start, piece.weight_start, piece.length});
      }
    }
    return targets;
  });
}

Targets::Component Targets::table_of(LoadedModel& model, const LoadedPart& part) {
  Component component;
  component.name = part.detection.component;
  for (const ComponentSpec& spec : model.family().components()) {
    if (spec.name != component.name) continue;
    component.is_denoiser = spec.role == Role::kDenoiser;
    component.is_text_encoder = spec.role == Role::kTextEncoder;
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

  // Names of the checkpoint first: where they and others differ, files speak the former.
  component.by_name = spelled_targets(model, part, part.detection.spelling);
  if (component.is_denoiser || component.is_text_encoder) {
    const std::vector<std::string> spellings = plugins::guard(
        model.family().name(), [&] { return model.family().spellings(part.detection); });
    for (const std::string& spelling : spellings) {
      if (spelling != part.detection.spelling)
        component.by_name.merge(spelled_targets(model, part, spelling));
    }
  }
  nn::Module& root = model.model().component(component.name);
  const Linears linears(root);
  root.visit_weights([&](const std::string& path, Weight& weight) {
    const std::optional<std::string> layer = layer_of(path);
    if (!layer) return;
    Target target = {component.name, {}, 0, 0, {{&weight, linears.find(weight), *layer}}};
    set_shape(target, weight.sizes().vec());
    component.by_name.emplace(path, std::move(target));
  });
  for (const auto& [name, target] : component.by_name) {
    component.by_flat_name.emplace(flat(name), &target);
    if (target.pieces.front().linear != nullptr)
      component.widest = std::max({component.widest, target.in, target.out});
  }
  return component;
}

Targets::Targets(LoadedModel& model) : family_(model.family().name()) {
  for (const LoadedPart& part : model.parts()) components_.push_back(table_of(model, part));
  std::stable_partition(components_.begin(), components_.end(),
                        [](const Component& component) { return component.is_denoiser; });
}

const Target* Targets::find_in(const Component& component, std::string_view name,
                               std::string_view ending) {
  // Files of some tools have several prefixes: "base_model.model.transformer.".
  for (int i = 0; i < 4; ++i) {
    if (const auto found = component.by_name.find(std::string(name) + std::string(ending));
        found != component.by_name.end())
      return &found->second;
    const auto prefix =
        std::find_if(component.prefixes.begin(), component.prefixes.end(),
                     [&](const std::string& text) { return name.starts_with(text); });
    if (prefix == component.prefixes.end()) return nullptr;
    name.remove_prefix(prefix->size());
  }
  return nullptr;
}

const Target* Targets::find(std::string_view name, std::string_view ending) const {
  const auto find_flat = [&](auto& prefixes, auto is_meant) -> const Target* {
    for (const std::string_view prefix : prefixes) {
      if (!name.starts_with(prefix)) continue;
      for (const Component& component : components_) {
        if (!is_meant(component)) continue;
        const auto found = component.by_flat_name.find(
            flat(std::string(name.substr(prefix.size())) + std::string(ending)));
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
    if (const Target* target = find_in(component, name, ending)) return target;
  }
  return nullptr;
}

const Target* Targets::find(std::string_view name) const {
  const Target* target = find_weight(name);
  if (target == nullptr) return nullptr;
  const bool is_linear =
      target->shape.size() == 2 &&
      std::all_of(target->pieces.begin(), target->pieces.end(),
                  [](const TargetPiece& piece) { return piece.linear != nullptr; });
  return is_linear ? target : nullptr;
}

// One rank for all layers goes beyond narrow ones, but not beyond all of them.
void Targets::check_rank(const std::string& path, const LoraLayer& layer,
                         const std::string& name) const {
  for (const Component& component : components_) {
    if (component.name != name || layer.rank <= component.widest) continue;
    throw Error(ErrorCode::kInvalidArgument,
                path + ": layer " + quote_and_escape(layer.name) + ": rank " +
                    std::to_string(layer.rank) + ", and no layer of " + name + " is wider than " +
                    std::to_string(component.widest),
                "the file is damaged, or no LoRA", "LORA_RANK");
  }
}

Match Targets::match(const LoraFile& file) const {
  const std::string path = files::display_path(file.path());
  Match match;
  std::map<const Target*, size_t> named;  // layer of the file that a target was named by
  std::vector<std::string> misfits;
  const auto add = [&](std::vector<Match::Pair>& pairs, size_t layer, const Target* target) {
    const auto [other, is_new] = named.emplace(target, layer);
    if (!is_new)
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": " + quote_and_escape(file.layers()[other->second].name) + " and " +
                      quote_and_escape(file.layers()[layer].name) + " are one layer of " +
                      target->component,
                  "the file names a layer in two ways: save it again", "LORA_TWICE");
    pairs.push_back({layer, target});
  };
  for (size_t i = 0; i < file.layers().size(); ++i) {
    const LoraLayer& layer = file.layers()[i];
    const bool is_any_weight =
        layer.form == LayerForm::kNone || layer.form == LayerForm::kDifference;
    const Target* target = is_any_weight ? find_weight(layer.name) : find(layer.name);
    if (target == nullptr) {
      match.unmatched.push_back(layer.name);
      continue;
    }
    if (layer.form != LayerForm::kNone) {
      if (std::string text = misfit(layer, *target); !text.empty()) {
        misfits.push_back(std::move(text));
        continue;
      }
      check_rank(path, layer, target->component);
      check_magnitude(path, layer, *target);
      add(match.pairs, i, target);
    }
    if (layer.bias.empty()) continue;
    const Target* bias = find_bias(layer.name);
    if (bias == nullptr)
      throw Error(ErrorCode::kInvalidArgument,
                  path + ": tensor " + quote_and_escape(layer.bias) +
                      ": the layer has no bias in " + family_,
                  "use a LoRA of this model", "LORA_SHAPE");
    if (bias->out == file.tensors().index().dim(layer.bias, 0)) {
      add(match.biases, i, bias);
    } else {
      misfits.push_back("tensor " + quote_and_escape(layer.bias) + ": " +
                        c10::str(at::IntArrayRef(file.tensors().index().find(layer.bias)->shape)) +
                        ", " + c10::str(at::IntArrayRef(bias->shape)) + " expected");
    }
  }
  if (!misfits.empty()) {
    std::string message = path + ": is made for another model: ";
    for (size_t i = 0; i < std::min(misfits.size(), kShown); ++i)
      message += (i > 0 ? "; " : "") + misfits[i];
    if (misfits.size() > kShown)
      message += "; and " + std::to_string(misfits.size() - kShown) + " more";
    throw Error(ErrorCode::kInvalidArgument, message, "use a LoRA of this model", "LORA_SHAPE");
  }
  if (match.pairs.empty() && match.biases.empty())
    throw Error(ErrorCode::kInvalidArgument,
                path + ": none of its " + std::to_string(file.layers().size()) +
                    " layers is one of " + family_ + ": " +
                    report::list_names(match.unmatched, kShown),
                "use a LoRA of this model", "LORA_NO_MATCH");
  match.unmatched.insert(match.unmatched.end(), file.unknown().begin(), file.unknown().end());
  return match;
}

}  // namespace atelier::lora
