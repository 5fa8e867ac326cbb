// Checkpoints and LoRA files: their tensors, and what families make of them.
#include <algorithm>
#include <cmath>
#include <set>

#include "atelier/error.h"

#include "formats/glob.h"
#include "formats/lora_names.h"
#include "host/files/file_reader.h"
#include "host/inputs/parse.h"
#include "host/inspect/inspect.h"
#include "host/model/components.h"
#include "host/model/stages.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"

namespace atelier::inspect {
namespace {

using files::Checkpoint;

constexpr std::string_view kNegativePrompt = "negative_prompt";  // is encoded as the prompt is

// Whole numbers of a list are shown as such.
Thing config_json(const ConfigValue& value) {
  return std::visit(
      [](const auto& held) -> Thing {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::vector<double>>) {
          Thing out = Thing::array();
          for (const double number : held) {
            if (number == std::floor(number) && std::abs(number) < 1e15) {
              out.push_back(static_cast<int64_t>(number));
            } else {
              out.push_back(number);
            }
          }
          return out;
        } else {
          return held;
        }
      },
      value);
}

std::string dtype_text(at::ScalarType type) {
  return std::string(formats::dtype_name(files::file_dtype(type)));
}

// How the values of a tensor are stored: "BF16", "Q4_K".
std::string kind_text(const Checkpoint& file, const std::string& name, const TensorMeta& meta) {
  const files::PackedTensor* packed = file.packed(name);
  return packed != nullptr ? std::string(memory::packing_name(packed->packing))
                           : dtype_text(meta.dtype);
}

Thing tensor_summary(const Checkpoint& file, bool lists_tensors) {
  const TensorIndex& index = file.index();
  Thing out;
  std::map<std::string, std::pair<int64_t, uint64_t>> dtypes;
  uint64_t elements = 0, bytes = 0;
  for (const auto& [name, meta] : index.tensors()) {
    const auto count = static_cast<uint64_t>(c10::multiply_integers(meta.shape));
    const uint64_t size = file.bytes_of(name);
    const std::string kind = kind_text(file, name, meta);
    auto& [tensors, held] = dtypes[kind];
    ++tensors;
    held += size;
    elements += count;
    bytes += size;
    if (lists_tensors)
      out["list"].push_back({{"name", name}, {"dtype", kind}, {"shape", meta.shape}});
  }
  out.update({{"count", index.tensors().size()}, {"elements", elements}, {"bytes", bytes}});
  for (const auto& [name, counts] : dtypes)
    out["dtypes"][name] = {{"tensors", counts.first}, {"bytes", counts.second}};
  return out;
}

// Whether a component has to do with an input: a denoiser with all of its variant, a control with
// those that are for it, another one with those of the stages that it encodes in.
bool takes(const ModelFamily& family, const Detection& detection, const InputSpec& input) {
  const ComponentSpec& spec = *model::find_component(family, detection.component);
  if (spec.role == Role::kDenoiser) return inputs::holds_for(input, detection.variant);
  const model::Stages stages = model::stages_of(family, {});
  if (spec.role == Role::kControl) return model::is_for(input, spec, family.encode_stages());
  return std::ranges::any_of(stages.encoding, [&](const EncodeStage& stage) {
    if (!model::uses(stage, spec)) return false;
    if (input.role == InputRole::kStart) return stages.is_target(stage);
    return model::reads(stage, input.name) ||
           (model::is_prompted(stage) && input.name == kNegativePrompt);
  });
}

Thing inputs_of(const ModelFamily& family, const Detection& detection) {
  Thing inputs;
  for (const InputSpec& input : family.inputs()) {
    if (!takes(family, detection, input)) continue;
    inputs.push_back({{"name", input.name},
                      {"required", inputs::is_required(input, detection.variant)},
                      {"use", input.use == InputUse::kTrain      ? "train"
                              : input.use == InputUse::kGenerate ? "generate"
                                                                 : "both"},
                      {"help", input.help}});
  }
  return inputs;
}

// What a family makes of one component of a checkpoint.
Thing describe_part(const ModelFamily& family, const model::LoadedPart& part,
                    std::string& refusal) {
  const Detection& detection = part.detection;
  const Checkpoint& file = part.checkpoint;
  Thing out = {{"family", family.name()},
               {"component", detection.component},
               {"variant", detection.variant},
               {"spelling", detection.spelling},
               {"prefix", detection.prefix}};
  for (const auto& [key, value] : detection.config) out["config"][key] = config_json(value);
  if (file.config()) out["config_place"] = file.config()->place;
  if (Thing inputs = inputs_of(family, detection); !inputs.is_null())
    out["inputs"] = std::move(inputs);
  try {
    const std::vector<Detection> parts = {detection};
    const std::unique_ptr<Model> model = family.make_model(parts, ModelOptions{});
    weights::bind_weights(family.weight_map(detection), detection.prefix, file.index(),
                          model->component(detection.component))
        .throw_unless_complete(file.name(), detection.component);
  } catch (const Error& error) {
    refusal = report::error_line(error);
  }
  return out;
}

// What a family makes of a checkpoint; null when it is none of its. A file of several components
// is described as the first of them, with all the others in "others".
Thing ask_family(const ModelFamily& family, const Checkpoint& file, const Options& options,
                 std::vector<model::LoadedPart>& lenders, std::string& refusal) {
  Thing out;
  for (const auto& part : model::detect_parts(family, file, options.hints, lenders)) {
    if (part.checkpoint.config()) lenders.push_back(part);
    Thing described = describe_part(family, part, refusal);
    if (out.is_null()) {
      out = std::move(described);
    } else {
      out["others"].push_back(std::move(described));
    }
  }
  return out;
}

// The variants that a family's tables name in full, one glob after another with bars between.
std::set<std::string_view> named_variants(const ModelFamily& family) {
  std::set<std::string_view> names;
  const auto take = [&](std::string_view globs) {
    while (!globs.empty()) {
      const std::string_view glob = globs.substr(0, globs.find('|'));
      if (glob.find_first_of("*?") == std::string_view::npos) names.insert(glob);
      globs.remove_prefix(std::min(globs.size(), glob.size() + 1));
    }
  };
  for (const ScheduleDefaults& schedule : family.schedules()) take(schedule.variants);
  for (const InputSpec& input : family.inputs()) take(input.variants);
  return names;
}

// Globs over the names of a denoiser's layers, in every spelling of its family, and over those that
// LoRAs of other variants have.
std::vector<std::string> layer_globs(const ModelFamily& family, Detection part) {
  std::vector<std::string> globs = family.lora_targets(part).include;
  Detection other = part;
  for (const std::string_view variant : named_variants(family)) {
    other.variant = variant;
    std::ranges::move(family.lora_targets(other).include, std::back_inserter(globs));
  }
  for (const std::string& spelling : family.spellings(part)) {
    part.spelling = spelling;
    for (const WeightRule& rule : family.weight_map(part)) {
      constexpr std::string_view kWeight = ".weight";
      if (rule.to.empty() || !rule.from.ends_with(kWeight)) continue;
      std::string glob = rule.from.substr(0, rule.from.size() - kWeight.size());
      for (size_t hole = glob.find("{}"); hole != std::string::npos; hole = glob.find("{}"))
        glob.replace(hole, 2, 1, '*');
      globs.push_back(std::move(glob));
    }
  }
  return globs;
}

// A layer's name without what files put before it; underscores stand for dots where it is flat.
struct BareName {
  std::string text;
  bool is_flat = false;
};
BareName bare_name(std::string_view layer, const std::string& family_prefix) {
  while (true) {
    if (!family_prefix.empty() && layer.starts_with(family_prefix)) {
      layer.remove_prefix(family_prefix.size());
    } else if (const auto prefix = formats::without_lora_prefix(layer)) {
      layer = prefix->path;
      if (prefix->is_flat) return {std::string(layer), /*is_flat=*/true};
    } else {
      return {std::string(layer)};
    }
  }
}

// How many of a LoRA's layers a denoiser of the family has.
size_t count_known(const ModelFamily& family, const Detection& part,
                   const std::set<std::string>& layers) {
  const std::string prefix = family.lora_targets(part).file_prefix;
  const std::vector<std::string> globs = layer_globs(family, part);
  return std::ranges::count_if(layers, [&](const std::string& layer) {
    const BareName name = bare_name(layer, prefix);
    return std::ranges::any_of(globs, [&](const std::string& glob) {
      return formats::glob_match(name.is_flat ? formats::flat_lora_name(glob) : glob, name.text);
    });
  });
}

// Says in `out` where a family's denoiser has more of the layers than `best`.
void match_family(const std::set<std::string>& layers, const ModelFamily& family, size_t& best,
                  Thing& out) {
  for (const Detection& part : family.tiny_parts()) {
    if (!model::has_role(family, part.component, Role::kDenoiser)) continue;
    const size_t known = count_known(family, part, layers);
    if (known <= best) continue;
    best = known;
    out["family"] = family.name();
    out["component"] = family.lora_targets(part).component;
    out["known_layers"] = known;
  }
}

// The layers of a LoRA file, their ranks, and the family whose layers have most of these names.
Thing lora_summary(const TensorIndex& index, const std::vector<const ModelFamily*>& families) {
  using formats::LoraRole;
  std::set<std::string> layers;
  std::set<int64_t> ranks;
  for (const auto& [tensor, meta] : index.tensors()) {
    const formats::LoraTensorName name = formats::parse_lora_tensor(tensor);
    if (name.role != LoraRole::kDown && name.role != LoraRole::kHada1Down &&
        name.role != LoraRole::kKron1 && name.role != LoraRole::kKron1Left)
      continue;
    layers.insert(name.layer);
    if (meta.shape.size() >= 2) ranks.insert(std::min(meta.shape[0], meta.shape[1]));
  }
  Thing out = {{"layers", layers.size()}, {"ranks", ranks}};
  size_t best = 0;
  for (const ModelFamily* family : families) match_family(layers, *family, best, out);
  return out;
}

}  // namespace

Thing Inspector::inspect_checkpoint(const files::CheckpointFiles& files) {
  const Checkpoint file = Checkpoint::open(files);
  Thing out;
  out["path"] = files.name;
  out["kind"] = model::is_lora(file.index()) ? "lora" : "checkpoint";
  out["files"] = file.files();
  out["tensors"] = tensor_summary(file, options_.lists_tensors);
  for (const auto& [key, value] : file.metadata()) {
    if (key != files::kConfigKey) out["metadata"][key] = value;
  }
  if (out["kind"] == "lora") {
    out["lora"] = lora_summary(file.index(), options_.families);
    return out;
  }
  std::vector<std::string> asked;
  for (const ModelFamily* family : options_.families) {
    asked.emplace_back(family->name());
    std::string refusal;
    try {
      Thing taken = ask_family(*family, file, options_, lenders_, refusal);
      if (taken.is_null()) continue;
      out["taken_by"] = std::move(taken);
    } catch (const Error& error) {
      refusal = report::error_line(error);
    }
    if (!refusal.empty()) out["refused"] = refusal;
    return out;
  }
  out["refused"] = report::error_line(Error(
      ErrorCode::kUnsupported,
      files::display_path(files.name) + ": no family takes it (asked " +
          (asked.empty() ? std::string("none: no plugin was found") : report::list_names(asked)) +
          ")",
      "is it a whole checkpoint, in safetensors?", "CHECKPOINT_UNKNOWN"));
  return out;
}

}  // namespace atelier::inspect
