#include "host/parameters/selection.h"

#include <algorithm>
#include <map>
#include <set>

#include <c10/util/StringUtil.h>

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/inputs/parse.h"
#include "host/model/components.h"
#include "host/weights/weight_binding.h"

namespace atelier::parameters {

using order::LoraSettings;
using order::Training;

using formats::quote_and_escape;
using model::LoadedModel;
using report::Problems;

namespace {

// Whether a component has files; a problem where it has none. Names that no component has were
// found with the flags.
bool is_given(const LoadedModel& model, const std::string& flag, const std::string& component,
              Problems& problems) {
  if (model.find_part(component) != nullptr) return true;
  if (model::find_component(model.family(), component) != nullptr)
    problems.add(flag + ": component " + component + " was not given",
                 "pass its files with --model_paths or --model_id_with_origin_paths",
                 ErrorCode::kNotFound);
  return false;
}

// The last parts of paths, by which users name things: "to_q".
std::vector<std::string> known_ends(const std::vector<std::string>& paths) {
  std::set<std::string> ends;
  for (const std::string& path : paths) {
    ends.insert(path);
    ends.insert(path.substr(path.rfind('.') + 1));
  }
  return {ends.begin(), ends.end()};
}

// Adds that a name is none of `paths`, with the one that it may be.
void add_unknown(const std::string& message, const std::string& name,
                 const std::vector<std::string>& paths, Problems& problems) {
  const std::string nearest = report::nearest_name(name, known_ends(paths));
  problems.add(message, nearest.empty() ? "atelier inspect lists the tensors of a checkpoint"
                                        : "did you mean " + nearest + "?");
}

// What the weights of components are bound to; a component is bound once for all names in it.
using Bindings = std::map<std::string, weights::WeightBinding>;

const weights::WeightBinding& bind(LoadedModel& model, const std::string& component,
                                   Bindings& bindings) {
  const auto [it, is_new] = bindings.try_emplace(component);
  if (is_new) {
    const auto& part = *model.find_part(component);
    it->second =
        weights::bind_weights(model.family().weight_map(part.detection), part.detection.prefix,
                              part.checkpoint.index(), model.model().component(component));
  }
  return it->second;
}

// `name`: a component, or a part of one by its path or by its name in the checkpoint.
void select_weights(LoadedModel& model, const std::string& name, Bindings& bindings,
                    Selection& selection, Problems& problems) {
  const std::string component = model::component_of(name);
  if (!is_given(model, "--trainable_models", component, problems)) return;
  const std::string at = "--trainable_models: " + quote_and_escape(name);
  if (const auto storage = model.storage(component); storage != weights::Storage::kPlain) {
    problems.add(at + ": " + component + " is stored as " +
                     std::string(weights::storage_name(storage)) +
                     ", and weights that are trained cannot be",
                 "leave it out of --storage and --fp8_models, or train a LoRA");
    return;
  }
  const std::string below = name == component ? "" : name.substr(component.size() + 1);
  std::vector<std::string> paths;
  const size_t before = selection.weights.size();
  const auto is_below = [&](std::string_view path) {
    return below.empty() || path == below || path.starts_with(below + ".");
  };
  for (const weights::BoundWeight& bound : bind(model, component, bindings).weights) {
    bool is_meant = is_below(bound.path);
    paths.push_back(bound.path);
    for (const weights::WeightSlice& slice : bound.slices) {
      const size_t prefix = model.find_part(component)->detection.prefix.size();
      paths.push_back(slice.tensor.substr(prefix));
      is_meant |= is_below(paths.back());
    }
    if (is_meant) selection.weights.push_back({component, bound.path, bound.weight});
  }
  if (selection.weights.size() > before) return;
  add_unknown(at + " names nothing in " + component, below, paths, problems);
}

void drop_twice_named(Selection& selection) {
  std::set<const Weight*> seen;
  std::erase_if(selection.weights,
                [&](const auto& trained) { return !seen.insert(trained.weight).second; });
}

bool matches_any(const std::vector<std::string>& globs, const std::string& path) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return formats::glob_match(glob, path); });
}

// The family's own choice; without one, every linear layer of the component's blocks.
std::set<std::string> automatic_targets(LoadedModel& model, const std::string& component,
                                        const std::map<std::string, nn::Linear*>& linears) {
  std::set<std::string> chosen;
  for (const model::RangedDenoiser& denoiser : model.stages().denoisers) {
    if (denoiser.name() != component) continue;
    const LoraTargets targets = model.family().lora_targets(denoiser.part);
    for (const auto& [path, linear] : linears) {
      if (matches_any(targets.include, path) && !matches_any(targets.exclude, path))
        chosen.insert(path);
    }
  }
  if (!chosen.empty()) return chosen;
  for (Block* block : model.model().blocks(component)) {
    block->visit([&](nn::Module& module) {
      if (dynamic_cast<nn::Linear*>(&module) != nullptr) chosen.insert(module.path());
    });
  }
  return chosen;
}

void select_layers(LoadedModel& model, const LoraSettings& lora, const std::string& component,
                   Selection& selection, Problems& problems) {
  if (!is_given(model, "--lora_base_model", component, problems)) return;
  std::map<std::string, nn::Linear*> linears;
  std::vector<std::string> paths;
  model.model().component(component).visit([&](nn::Module& module) {
    auto* linear = dynamic_cast<nn::Linear*>(&module);
    if (linear == nullptr) return;
    linears.emplace(module.path(), linear);
    paths.push_back(module.path());
  });
  std::set<std::string> chosen;
  if (lora.target_modules.empty()) chosen = automatic_targets(model, component, linears);
  for (const std::string& target : lora.target_modules) {
    bool is_known = false;
    for (const std::string& path : paths) {
      if (path != target && !path.ends_with("." + target)) continue;
      chosen.insert(path);
      is_known = true;
    }
    if (!is_known)
      add_unknown("--lora_target_modules: " + quote_and_escape(target) + " is no linear layer of " +
                      component,
                  target, paths, problems);
  }
  int64_t largest_rank = 0;
  for (const std::string& path : paths) {
    if (!chosen.contains(path)) continue;
    const nn::Linear& linear = *linears[path];
    largest_rank = std::max(largest_rank, std::min(linear.in_features(), linear.out_features()));
    selection.layers.push_back({component, path, linears[path]});
  }
  if (lora.target_modules.empty() && chosen.empty())
    problems.add("--lora_base_model: no layer of " + component + " gets a LoRA by itself",
                 "name layers with --lora_target_modules");
  if (largest_rank > 0 && lora.rank > largest_rank)
    problems.add(c10::str("--lora_rank: ", lora.rank, " is more than any of the layers has"),
                 c10::str("use at most ", largest_rank));
}

// Whether the rows of the dataset have an input. Of a cache alone nothing says it, and they may.
bool is_in_rows(const Training& config, const InputSpec& input, std::string_view variant) {
  const data::DatasetOptions& options = config.dataset;
  if (input.use == InputUse::kGenerate) return false;
  return options.dataset_base_path.empty() || inputs::is_required(input, variant) ||
         std::ranges::count(options.extra_inputs, input.name) > 0 ||
         options.texts_of_all.contains(input.name);
}

// A control that is trained has to run.
void check_controls(const LoadedModel& model, const Selection& selection, Problems& problems) {
  const model::Stages& stages = model.stages();
  for (const model::PresentComponent& one : stages.components) {
    if (one.spec.role != Role::kControl || !selection.trains(one.name)) continue;
    if (model.find_part(one.spec.beside) == nullptr) {
      problems.add("component " + one.name + " is trained, and " + std::string(one.spec.beside) +
                       " is missing, beside which it runs",
                   "pass its files with --model_paths or --model_id_with_origin_paths",
                   ErrorCode::kNotFound);
    } else if (!selection.controls.contains(one.name)) {
      std::vector<std::string> names;
      for (const InputSpec& input : stages.inputs)
        if (input.use != InputUse::kGenerate && model::is_for(input, one.spec, stages.encoding))
          names.emplace_back(input.name);
      problems.add("component " + one.name +
                       " is trained, and does not run: the rows have none of its inputs",
                   "name one with --extra_inputs: " + report::list_names(names));
    }
  }
}

}  // namespace

bool Selection::trains(std::string_view component) const {
  const auto is_in = [&](const auto& trained) { return trained.component == component; };
  return std::any_of(weights.begin(), weights.end(), is_in) ||
         std::any_of(layers.begin(), layers.end(), is_in);
}

Selection select_trained(LoadedModel& model, const Training& config, Problems& problems) {
  Selection selection;
  Bindings bindings;
  for (const std::string& name : config.trainable_models)
    select_weights(model, name, bindings, selection, problems);
  drop_twice_named(selection);
  for (const std::string& component : config.lora.base_models)
    select_layers(model, config.lora, component, selection, problems);
  const model::Stages& stages = model.stages();
  const auto is_given = [&](std::string_view name) {
    const auto input = std::ranges::find(stages.inputs, name, &InputSpec::name);
    return is_in_rows(config, *input, stages.variant);
  };
  for (const model::RangedDenoiser& denoiser : stages.denoisers) {
    for (std::string& control : stages.controls_beside(denoiser.name(), is_given))
      selection.controls.insert(std::move(control));
  }
  check_controls(model, selection, problems);
  return selection;
}

std::string denoiser_of(const LoadedModel& model, std::string_view component) {
  const ComponentSpec* spec = model::find_component(model.family(), component);
  if (spec == nullptr) return {};
  if (spec->role == Role::kControl) return std::string(spec->beside);
  return spec->role == Role::kDenoiser ? std::string(component) : std::string();
}

std::vector<model::RangedDenoiser> running_denoisers(const LoadedModel& model,
                                                     const Selection& selection) {
  const std::vector<model::RangedDenoiser>& all = model.stages().denoisers;
  std::vector<model::RangedDenoiser> trained;
  for (const model::RangedDenoiser& denoiser : all) {
    const bool is_trained = std::ranges::any_of(model.parts(), [&](const model::LoadedPart& part) {
      const std::string& component = part.detection.component;
      return denoiser_of(model, component) == denoiser.name() && selection.trains(component);
    });
    if (is_trained) trained.push_back(denoiser);
  }
  return trained.empty() ? all : trained;
}

std::set<std::string> running_components(const LoadedModel& model, const Selection& selection) {
  std::set<std::string> names;
  for (const model::RangedDenoiser& denoiser : running_denoisers(model, selection))
    names.insert(denoiser.name());
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& component = part.detection.component;
    const bool runs_beside =
        selection.controls.contains(component) && names.contains(denoiser_of(model, component));
    if (selection.trains(component) || runs_beside) names.insert(component);
  }
  return names;
}

}  // namespace atelier::parameters
