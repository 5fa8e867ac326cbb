#include "host/model/recognition.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/lora_names.h"
#include "host/files/file_reader.h"
#include "host/model/components.h"
#include "host/model/config_check.h"
#include "host/weights/weight_binding.h"

namespace atelier::model {

namespace {

// What a checkpoint that no component takes comes nearest to: the component whose table knows most
// of its names.
std::string nearest_component(const ModelFamily& family, const TensorIndex& index) {
  std::string best;
  int64_t best_count = 0;
  for (const Detection& tiny : family.tiny_parts()) {
    const WeightMap rules = family.weight_map(tiny);
    for (const std::string& prefix :
         {tiny.prefix, std::string(), std::string("model.diffusion_model."), std::string("model."),
          std::string("transformer.")}) {
      const int64_t count = weights::count_known_tensors(rules, prefix, index);
      if (count > best_count) {
        best_count = count;
        best = tiny.component;
      }
    }
  }
  const auto total = static_cast<int64_t>(index.tensors().size());
  if (best_count * 2 < total) return {};
  return "nearest is " + best + ": " + std::to_string(best_count) + " of its " +
         std::to_string(total) + " names are known there";
}

Error unknown_checkpoint(const ModelFamily& family, const files::Checkpoint& checkpoint) {
  const TensorIndex& index = checkpoint.index();
  std::vector<std::string> names;
  for (const auto& [name, meta] : index.tensors()) {
    names.push_back(name);
    if (names.size() == 2) break;
  }
  std::string message = "is no component of " + std::string(family.name()) + " (" +
                        std::to_string(index.tensors().size()) + " tensors";
  if (!names.empty()) message += ", the first " + report::list_names(names);
  message += ")";
  const std::string nearest = nearest_component(family, index);
  if (!nearest.empty()) message += "; " + nearest;
  return Error(ErrorCode::kUnsupported, message, "atelier inspect says which family takes it",
               "CHECKPOINT_UNKNOWN");
}

}  // namespace

bool is_lora(const TensorIndex& index) {
  return std::ranges::any_of(
      index.tensors(), [](const auto& tensor) { return formats::is_lora_tensor(tensor.first); });
}

std::string LoadedPart::model_folder() const {
  return folder_beside.empty() ? model_folder_of(checkpoint) : folder_beside;
}

bool owns(const Detection& part, std::string_view tensor) {
  if (!tensor.starts_with(part.prefix)) return false;
  const std::string_view name = tensor.substr(part.prefix.size());
  return part.owns.empty() || std::ranges::any_of(part.owns, [&](const std::string& glob) {
           return formats::glob_match(glob, name);
         });
}

namespace {

// The last one of several patterns that fit a checkpoint counts.
DetectHint hint_of(const files::Checkpoint& checkpoint, const DetectHints& hints) {
  DetectHint hint;
  for (const auto& [pattern, said] : hints) {
    const bool matches_file =
        std::any_of(checkpoint.files().begin(), checkpoint.files().end(),
                    [&](const std::string& file) { return formats::glob_match(pattern, file); });
    if (matches_file || formats::glob_match(pattern, checkpoint.name())) hint = said;
  }
  return hint;
}

std::optional<Detection> detect_checkpoint(const ModelFamily& family,
                                           const files::Checkpoint& checkpoint,
                                           const DetectHint& hint) {
  if (is_lora(checkpoint.index()))
    throw Error(ErrorCode::kUnsupported, "is a LoRA, not a model",
                "a LoRA is added to a model: take it out of the model's files", "CHECKPOINT_LORA");
  // Families know one component of each name.
  const DetectHint asked = {std::string(spec_name(hint.component)), hint.variant};
  auto found = detect_with_config(family, checkpoint.index(), asked);
  // A variant is the denoiser's. Other parts, which may go with several, stay what they are.
  if (found && !hint.variant.empty() && !has_role(family, found->component, Role::kDenoiser))
    found->variant = detect_with_config(family, checkpoint.index(), {asked.component, {}})->variant;
  if (found && found->component == asked.component && asked.component != hint.component) {
    if (find_component(family, hint.component) == nullptr)
      throw Error(ErrorCode::kInvalidArgument,
                  "component " + formats::quote_and_escape(hint.component) + ": " +
                      std::string(family.name()) + " has " +
                      report::list_names(component_names(family)),
                  "name one of them in --model_hints");
    found->component = hint.component;
  }
  return found;
}

// The first component of a checkpoint, with the config that it was recognised by. `checkpoint` of
// the result has all tensors.
std::optional<LoadedPart> detect_first(const ModelFamily& family,
                                       const files::Checkpoint& checkpoint, const DetectHint& hint,
                                       std::span<const LoadedPart> lenders) {
  if (checkpoint.config()) lenders = {};
  for (const LoadedPart& lender : lenders) {
    const files::Checkpoint lent = checkpoint.with_config_of(lender.checkpoint);
    try {
      const std::optional<Detection> found = detect_checkpoint(family, lent, hint);
      if (found && spec_name(found->component) == spec_name(lender.detection.component))
        return LoadedPart{*found, lent, hint};
    } catch (const Error& error) {
      // The config is another component's, or contradicts the tensors.
      if (error.code() != ErrorCode::kUnsupported && error.code() != ErrorCode::kInvalidArgument)
        throw;
    }
  }
  std::optional<Detection> found = detect_checkpoint(family, checkpoint, hint);
  if (!found) return std::nullopt;
  return LoadedPart{std::move(*found), checkpoint, hint};
}

// Whether the component's table knows a tensor that it does not use.
bool knows_unused(const WeightMap& rules, const Detection& part, std::string_view tensor) {
  if (!tensor.starts_with(part.prefix)) return false;
  return std::ranges::any_of(rules, [&](const WeightRule& rule) {
    return rule.to.empty() && formats::glob_match(rule.from, tensor.substr(part.prefix.size()));
  });
}

// The parts of a checkpoint, before the family says which is which.
std::vector<LoadedPart> split(const ModelFamily& family, const files::Checkpoint& checkpoint,
                              const DetectHints& hints, std::span<const LoadedPart> lenders) {
  std::vector<LoadedPart> parts;
  DetectHint hint = hint_of(checkpoint, hints);
  files::Checkpoint rest = checkpoint;
  while (!rest.index().tensors().empty()) {
    std::optional<LoadedPart> found = detect_first(family, rest, hint, lenders);
    if (!found) break;
    const auto is_own = [&, part = found->detection](std::string_view tensor) {
      return owns(part, tensor);
    };
    found->checkpoint = found->checkpoint.only(is_own);
    if (found->checkpoint.index().tensors().empty())
      throw Error(ErrorCode::kInternal, std::string(family.name()) + ".detect: the " +
                                            found->detection.component + " owns no tensor of it");
    rest = rest.only([&](std::string_view tensor) { return !is_own(tensor); });
    parts.push_back(std::move(*found));
    hint.component.clear();  // it is about one component
  }
  if (parts.size() > 1 || (!parts.empty() && !rest.index().tensors().empty())) {
    LoadedPart& first = parts.front();
    const files::Checkpoint own = first.checkpoint;
    const WeightMap rules = family.weight_map(first.detection);
    first.checkpoint = checkpoint
                           .only([&](std::string_view tensor) {
                             return own.index().contains(tensor) || rest.index().contains(tensor) ||
                                    knows_unused(rules, first.detection, tensor);
                           })
                           .with_config_of(own);
  }
  return parts;
}

// Runs `work` on a checkpoint, which the errors that it throws name.
template <typename F>
void with(const files::Checkpoint& checkpoint, const F& work) {
  try {
    work();
  } catch (const Error& error) {
    throw error.at(files::display_path(checkpoint.name()));
  }
}

// The component that a saved file says it holds, where its tensors might be of several; empty: it
// says nothing of the kind.
std::string saved_component(const ModelFamily& family, const LoadedPart& part) {
  const auto& metadata = part.checkpoint.metadata();
  const auto said = metadata.find(formats::kLoraComponentKey);
  if (said == metadata.end()) return {};
  const ComponentSpec& detected = *find_component(family, part.detection.component);
  return has_role(family, said->second, detected.role) ? said->second : "";
}

std::string absolute_path(const LoadedPart& part) {
  const std::filesystem::path path = part.checkpoint.files().front();
  return std::filesystem::absolute(path).lexically_normal().string();
}

// How a saved file of one of several components is known.
enum class Said {
  kNothing,  // by what the family finds
  kStays,    // it is what it says
  kAlone,    // the family makes of what it says what one alone is: one of two may stand for both
};

// `beside`: parts of a model that has, or may have, what the file says.
Said what_is_said(const ModelFamily& family, std::span<LoadedPart* const> parts,
                  const LoadedPart& part, std::span<const LoadedPart> beside) {
  const std::string said = saved_component(family, part);
  if (said.empty() || !part.hint.component.empty()) return Said::kNothing;
  const auto kind = [](const LoadedPart* one) { return spec_name(one->detection.component); };
  const bool has_others = std::ranges::count(parts, kind(&part), kind) > 1;
  const bool is_beside = std::ranges::any_of(
      beside, [&](const LoadedPart& other) { return other.detection.component == said; });
  const bool is_other = spec_name(said) != kind(&part);
  return is_other && !has_others && !is_beside ? Said::kAlone : Said::kStays;
}

// Tells the family which component a saved file holds, where the user does not; of one alone that
// is what it is taken for there is nothing to tell.
void tell_saved(const ModelFamily& family, std::span<LoadedPart* const> parts,
                std::span<const Said> says, std::span<FoundPart> found) {
  const auto kind = [](const LoadedPart* part) { return spec_name(part->detection.component); };
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool has_others = std::ranges::count(parts, kind(parts[i]), kind) > 1;
    if (says[i] == Said::kNothing || (says[i] == Said::kStays && !has_others)) continue;
    found[i].part.component = found[i].hint.component =
        spec_name(saved_component(family, *parts[i]));
  }
}

void assign(const ModelFamily& family, std::span<LoadedPart* const> parts,
            std::span<const LoadedPart> beside = {}) {
  std::vector<FoundPart> found;
  std::vector<Said> says;
  for (const LoadedPart* part : parts) says.push_back(what_is_said(family, parts, *part, beside));
  for (const LoadedPart* part : parts) {
    FoundPart one = {part->detection, absolute_path(*part), part->hint};
    one.part.component = spec_name(one.part.component);
    one.hint.component = spec_name(one.hint.component);
    for (const FolderFile& file : folder_files(part->model_folder())) {
      for (const auto& [field, value] : file.fields) one.folder.emplace(file.prefix + field, value);
    }
    found.push_back(std::move(one));
  }
  tell_saved(family, parts, says, found);
  const std::string where = std::string(family.name()) + ".assign";
  family.assign(found);
  const bool has_denoiser = std::ranges::any_of(found, [&](const FoundPart& one) {
    return has_role(family, one.part.component, Role::kDenoiser);
  });
  for (size_t i = 0; i < parts.size(); ++i) {
    LoadedPart& part = *parts[i];
    const std::string& component = found[i].part.component;
    const ComponentSpec* spec = find_component(family, component);
    if (spec == nullptr || spec->role == Role::kTokenizer)
      throw Error(ErrorCode::kInternal,
                  where + ": " + files::display_path(part.checkpoint.name()) + ": no component " +
                      formats::quote_and_escape(component) + " of the family has tensors");
    if (part.hint.component.empty())
      part.detection.component =
          says[i] == Said::kStays ? saved_component(family, part) : component;
    // A hint's variant is the denoiser's. Where there is none, an encoder's path may say it.
    if (!has_denoiser && part.hint.variant.empty() &&
        part.detection.variant != found[i].part.variant)
      part.hint.variant = found[i].part.variant;
    if (part.hint.variant.empty() || spec->role != Role::kDenoiser)
      part.detection.variant = found[i].part.variant;
    part.detection.config = found[i].part.config;
  }
}

void add_to(std::vector<LoadedPart*>& all, std::vector<LoadedPart>& parts) {
  for (LoadedPart& part : parts) all.push_back(&part);
}

bool are_alike(const Detection& one, const Detection& other) {
  return spec_name(one.component) == spec_name(other.component) && one.variant == other.variant &&
         differing_numbers(one, other).empty();
}

// Gives parts that lie in no model's folder the one whose part they take the place of.
void find_folders_beside(std::vector<RecognisedCheckpoint>& checkpoints) {
  std::vector<const LoadedPart*> inside;
  for (const RecognisedCheckpoint& item : checkpoints) {
    if (!item.found.in_model_folder) continue;
    for (const LoadedPart& part : item.parts) inside.push_back(&part);
  }
  for (RecognisedCheckpoint& item : checkpoints) {
    if (item.found.in_model_folder || has_folder_files(model_folder_of(item.checkpoint))) continue;
    for (LoadedPart& part : item.parts) {
      const auto like = std::ranges::find_if(inside, [&](const LoadedPart* other) {
        return are_alike(part.detection, other->detection);
      });
      if (like != inside.end()) part.folder_beside = (*like)->model_folder();
    }
  }
}

// Makes files of one control "controlnet", "controlnet.1" and so on, in their order; those that a
// hint gives a number have it.
void number_instances(const ComponentSpec& spec, std::vector<LoadedPart*> parts,
                      report::Problems& problems) {
  std::erase_if(parts, [&](const LoadedPart* part) {
    return spec_name(part->detection.component) != spec.name;
  });
  if (std::ssize(parts) > spec.max_count) {
    std::vector<std::string> files;
    for (const LoadedPart* part : parts) files.push_back(part->checkpoint.name());
    return problems.add(Error(ErrorCode::kInvalidArgument,
                              std::to_string(parts.size()) + " files are the component " +
                                  std::string(spec.name) + ", and a model has at most " +
                                  std::to_string(spec.max_count) +
                                  " of it: " + report::list_names(files),
                              "leave some of them out", "CHECKPOINT_TWICE"));
  }
  std::vector<std::string> names;
  for (int64_t i = 0; i < std::ssize(parts); ++i) names.push_back(instance_name(spec.name, i));
  std::vector<std::string> free = names;
  for (LoadedPart* part : parts) {
    const std::string& said = part->hint.component;
    if (spec_name(said) == said) continue;
    if (std::erase(free, said) == 0)
      problems.add("--model_hints: component " + formats::quote_and_escape(said) + ": " +
                       std::to_string(parts.size()) + " files are " + report::list_names(names),
                   "give each file another one of these names, or none");
  }
  for (LoadedPart* part : parts) {
    const std::string& said = part->hint.component;
    if (spec_name(said) != said || free.empty()) continue;
    part->detection.component = free.front();
    free.erase(free.begin());
  }
}

}  // namespace

std::vector<LoadedPart> detect_parts(const ModelFamily& family, const files::Checkpoint& checkpoint,
                                     const DetectHints& hints,
                                     std::span<const LoadedPart> lenders) {
  std::vector<LoadedPart> parts;
  with(checkpoint, [&] { parts = split(family, checkpoint, hints, lenders); });
  std::vector<LoadedPart*> all;
  add_to(all, parts);
  assign(family, all, lenders);
  return parts;
}

std::vector<RecognisedCheckpoint> recognise(const ModelFamily& family,
                                            const std::vector<files::FoundCheckpoint>& found,
                                            const DetectHints& hints,
                                            std::vector<LoadedPart> lenders,
                                            report::Problems& problems) {
  std::vector<RecognisedCheckpoint> all;
  for (const files::FoundCheckpoint& item : found)
    problems.collect([&] { all.push_back({item, files::Checkpoint::open(item.files), {}}); });
  std::erase_if(lenders, [](const LoadedPart& lender) { return !lender.checkpoint.config(); });
  std::set<const RecognisedCheckpoint*> refused;
  for (const bool has_config : {true, false}) {
    for (RecognisedCheckpoint& item : all) {
      if (item.checkpoint.config().has_value() != has_config) continue;
      refused.insert(&item);
      problems.collect([&] {
        with(item.checkpoint, [&] {
          item.parts = split(family, item.checkpoint, hints, lenders);
          if (item.parts.empty() && !item.found.in_model_folder)
            throw unknown_checkpoint(family, item.checkpoint);
        });
        refused.erase(&item);
      });
      if (has_config) lenders.insert(lenders.end(), item.parts.begin(), item.parts.end());
    }
  }
  std::vector<RecognisedCheckpoint> recognised;
  for (RecognisedCheckpoint& item : all) {
    if (!refused.contains(&item)) recognised.push_back(std::move(item));
  }
  find_folders_beside(recognised);
  std::vector<LoadedPart*> parts;
  for (RecognisedCheckpoint& item : recognised) add_to(parts, item.parts);
  const size_t before = problems.size();
  problems.collect([&] { assign(family, parts); });
  for (const ComponentSpec& spec : family.components()) {
    if (spec.max_count > 1 && problems.size() == before) number_instances(spec, parts, problems);
  }
  if (problems.size() > before) recognised.clear();
  return recognised;
}

std::string told_by_order(const ModelFamily& family, std::span<const LoadedPart> parts) {
  const auto specs = family.components();
  const auto first = std::ranges::find(specs, Role::kDenoiser, &ComponentSpec::role);
  std::vector<const LoadedPart*> denoisers;
  for (const LoadedPart& part : parts) {
    if (has_role(family, part.detection.component, Role::kDenoiser)) denoisers.push_back(&part);
  }
  if (denoisers.size() < 2) return {};
  std::ranges::reverse(denoisers);
  std::vector<FoundPart> found;
  for (const LoadedPart* part : denoisers) {
    const std::string said = saved_component(family, *part);
    DetectHint hint = part->hint;
    if (hint.component.empty()) hint.component = said;
    Detection detection = part->detection;
    detection.component = hint.component.empty() ? std::string(first->name) : hint.component;
    found.push_back({detection, absolute_path(*part), hint});
  }
  family.assign(found);
  std::string text;
  for (size_t i = found.size(); i-- > 0;) {
    const LoadedPart& part = *denoisers[i];
    if (found[i].part.component == part.detection.component) continue;
    text += (text.empty() ? "" : ", ") + part.detection.component + " is " +
            files::display_path(part.checkpoint.name());
  }
  if (text.empty()) return {};
  return text + ": nothing but their order says it; --model_hints says it otherwise";
}

std::vector<std::string> differing_numbers(const Detection& one, const Detection& other) {
  std::vector<std::string> names;
  for (const auto& [name, value] : one.config) {
    const auto found = other.config.find(name);
    if (found == other.config.end() || found->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : other.config) {
    if (!one.config.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace atelier::model
