#include "host/lora/lora_writer.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"
#include "host/lora/lora_file.h"
#include "host/report/problems.h"

namespace atelier::lora {

namespace {

using files::display_path;
using formats::quote_and_escape;
using nlohmann::json;
using Spelling = formats::LoraSpelling;
using Alpha = Spelling::Alpha;

// What the file says of the tensors; never taken from Description::more.
constexpr std::string_view kOwnKeys[] = {"format",
                                         "rank",
                                         "alpha",
                                         "targets",
                                         "ss_network_dim",
                                         "ss_network_alpha",
                                         "lora_adapter_metadata"};

// A layer and what the file makes of it.
struct Written {
  const LayerWeights* layer;
  std::string name;         // in the file
  int64_t rank = 0;         // 0: it has no factors
  double alpha = 0.0;       // that the file gives, or what its readers take when it gives none
  bool use_rslora = false;  // the alpha is divided by the root of the rank
  double fold = 1.0;        // `up` is multiplied by this

  double scale() const {
    const auto divisor = static_cast<double>(rank);
    return alpha / (use_rslora ? std::sqrt(divisor) : divisor);
  }
};

std::string describe(const LayerWeights& layer) {
  return "layer " + quote_and_escape(layer.path) + " of " + layer.component;
}

void check_factors(const LayerWeights& layer) {
  if (!layer.down.defined() && !layer.up.defined() && !layer.others.empty()) return;
  const bool fits = layer.down.defined() && layer.up.defined() && layer.down.dim() == 2 &&
                    layer.up.dim() == 2 && layer.down.size(0) == layer.up.size(1) &&
                    layer.down.size(0) > 0;
  if (!fits)
    throw Error(ErrorCode::kInvalidArgument,
                describe(layer) + ": its factors are not [rank, in] and [out, rank] of one rank",
                "give both, of rank 1 or more", "LORA_RANK");
  if (!std::isfinite(layer.alpha))
    throw Error(ErrorCode::kInvalidArgument, describe(layer) + ": alpha is not finite",
                "alpha is a number, usually the rank", "LORA_VALUES");
}

const LoraTargets& targets_of(const LayerWeights& layer,
                              const std::map<std::string, LoraTargets>& targets) {
  const auto found = targets.find(layer.component);
  if (found == targets.end())
    throw Error(ErrorCode::kInternal, describe(layer) + ": its component has no LoRA targets");
  return found->second;
}

// "transformer." as the family says, "text_encoder." for components that it says nothing of.
std::string prefix_of(const std::string& component, const LoraTargets& targets) {
  return targets.file_prefix.empty() ? std::string(spec_name(component)) + "."
                                     : targets.file_prefix;
}

// What kohya's tools put before the layers of a text encoder.
std::string text_prefix_of(const LayerWeights& layer) {
  const auto names = formats::text_encoder_names();
  const auto found = std::ranges::find(names, layer.component);
  if (found == names.end())
    throw Error(ErrorCode::kUnsupported,
                describe(layer) + ": the kohya spelling has names for denoisers and text encoders",
                "use the spelling diffusers", "LORA_FORMAT");
  return formats::kohya_text_prefix(static_cast<size_t>(found - names.begin()));
}

std::string name_of(const LayerWeights& layer, const LoraTargets& targets,
                    const Spelling& spelling) {
  const std::string prefix = prefix_of(layer.component, targets);
  if (spelling.has_family_prefix) return prefix + layer.path;
  const bool is_denoiser = prefix != std::string(spec_name(layer.component)) + ".";
  if (spelling.is_flat)
    return (is_denoiser ? std::string(spelling.prefix) : text_prefix_of(layer)) +
           formats::flat_lora_name(layer.path);
  return (is_denoiser ? std::string(spelling.prefix) : prefix) + layer.path;
}

void check_form(const LayerWeights& layer, const Spelling& spelling) {
  if (layer.others.empty() || spelling.has_all_forms) return;
  const bool is_dora = layer.is_dora_of_rows();
  if (is_dora && !spelling.magnitude.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              describe(layer) + ": the " + std::string(spelling.name) +
                  " spelling has no name for " + quote_and_escape(layer.others.begin()->first),
              is_dora ? "diffusers, comfy and kohya have" : "comfy and kohya have", "LORA_FORMAT");
}

// diffusers says once for a whole component whether it is DoRA.
void check_is_all_dora(std::span<const LayerWeights> layers, const Spelling& spelling) {
  if (spelling.alpha != Alpha::kMetadata) return;
  std::set<std::string> with_dora;
  for (const LayerWeights& layer : layers) {
    if (layer.is_dora_of_rows()) with_dora.insert(layer.component);
  }
  for (const LayerWeights& layer : layers) {
    if (layer.is_dora_of_rows() || !with_dora.contains(layer.component)) continue;
    throw Error(ErrorCode::kUnsupported,
                describe(layer) +
                    ": is no DoRA as others are, and the diffusers spelling has "
                    "either all or none of a component",
                "comfy and kohya can tell them apart", "LORA_FORMAT");
  }
}

// Sets rank and alpha as the file gives them. `is_rslora`: the metadata says it of the component.
void set_alpha(Written& written, const Spelling& spelling, bool is_rslora) {
  const LayerWeights& layer = *written.layer;
  if (!layer.down.defined()) return;
  written.rank = layer.down.size(0);
  written.alpha = layer.alpha;
  const auto rank = static_cast<double>(written.rank);
  written.use_rslora = is_rslora && spelling.alpha == Alpha::kMetadata;
  if (layer.use_rslora && !written.use_rslora) written.alpha *= std::sqrt(rank);
  if (spelling.alpha == Alpha::kFolded) {
    written.fold = written.alpha / rank;
    written.alpha = rank;
  } else if (spelling.alpha == Alpha::kTensor) {
    written.alpha = static_cast<float>(written.alpha);
  }
}

std::vector<Written> plan(std::span<const LayerWeights> layers, const Spelling& spelling,
                          const std::map<std::string, LoraTargets>& targets) {
  // diffusers says once for a whole component whether it is rsLoRA.
  std::set<std::string> without_rslora;
  for (const LayerWeights& layer : layers) {
    if (!layer.use_rslora) without_rslora.insert(layer.component);
  }
  std::vector<Written> planned;
  std::map<std::string, const LayerWeights*> names;
  for (const LayerWeights& layer : layers) {
    check_factors(layer);
    check_form(layer, spelling);
    Written written{&layer, name_of(layer, targets_of(layer, targets), spelling)};
    const auto [other, is_new] = names.emplace(written.name, &layer);
    if (!is_new)
      throw Error(ErrorCode::kInvalidArgument,
                  describe(*other->second) + " and " + describe(layer) + " are both " +
                      quote_and_escape(written.name) + " in the " + std::string(spelling.name) +
                      " spelling",
                  "save them as a file each", "LORA_TWICE");
    set_alpha(written, spelling, !without_rslora.contains(layer.component));
    planned.push_back(std::move(written));
  }
  check_is_all_dora(layers, spelling);
  return planned;
}

// One tensor of the file, made when it is its turn.
struct Entry {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> value;
};

at::Tensor cast(const at::Tensor& value, double fold, at::ScalarType dtype) {
  const at::Tensor whole = value.detach();
  if (fold == 1.0) return whole.to(dtype).contiguous();
  return whole.to(at::kDouble).mul(fold).to(dtype).contiguous();
}

std::map<std::string, Entry> entries_of(const std::vector<Written>& plan, const Spelling& spelling,
                                        at::ScalarType dtype) {
  std::map<std::string, Entry> entries;
  for (const Written& written : plan) {
    const LayerWeights& layer = *written.layer;
    for (const auto& [key, value] : layer.others) {
      const bool is_vector = !spelling.magnitude.empty();  // check_form() lets DoRA pass
      const std::string name = is_vector ? std::string(spelling.magnitude) : key;
      const at::Tensor held = is_vector ? value.flatten() : value;
      entries.emplace(written.name + "." + name,
                      Entry{held.scalar_type(), held.sizes().vec(), [held] { return held; }});
    }
    if (written.rank == 0) continue;
    entries.emplace(written.name + std::string(spelling.down),
                    Entry{dtype, layer.down.sizes().vec(),
                          [&layer, dtype] { return cast(layer.down, 1.0, dtype); }});
    entries.emplace(written.name + std::string(spelling.up),
                    Entry{dtype, layer.up.sizes().vec(), [&written, dtype] {
                            return cast(written.layer->up, written.fold, dtype);
                          }});
    if (spelling.alpha == Alpha::kTensor)
      entries.emplace(written.name + ".alpha", Entry{at::kFloat, {}, [&written] {
                                                       return at::scalar_tensor(
                                                           written.alpha,
                                                           at::TensorOptions(at::kFloat));
                                                     }});
  }
  return entries;
}

// 32 and not 32.0, where it is whole.
json number(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

// The value that most layers have.
template <typename T>
T most_common(const std::map<T, int64_t>& counts) {
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// The names themselves where each layer ends in one, otherwise every layer by its whole path.
json target_modules(const std::vector<const Written*>& layers,
                    const std::vector<std::string>& names) {
  const auto is_named = [&](const Written* written) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return written->layer->path == name || written->layer->path.ends_with("." + name);
    });
  };
  if (std::all_of(layers.begin(), layers.end(), is_named)) return names;
  json paths = json::array();
  for (const Written* written : layers) paths.push_back(written->layer->path);
  return paths;
}

// A LoraConfig of peft for each component, its names behind the component's prefix.
std::string adapter_metadata(const std::vector<Written>& plan,
                             const std::map<std::string, LoraTargets>& targets,
                             const std::vector<std::string>& names) {
  std::map<std::string, std::vector<const Written*>> by_component;
  for (const Written& written : plan) by_component[written.layer->component].push_back(&written);
  json config = json::object();
  for (const auto& [component, layers] : by_component) {
    const std::string prefix = prefix_of(component, targets.at(component));
    std::map<int64_t, int64_t> ranks;
    std::map<double, int64_t> alphas;
    for (const Written* written : layers) ++ranks[written->rank], ++alphas[written->alpha];
    const int64_t rank = most_common(ranks);
    const double alpha = most_common(alphas);
    json rank_pattern = json::object(), alpha_pattern = json::object();
    for (const Written* written : layers) {
      const std::string anchored = "^" + written->layer->path;
      if (written->rank != rank) rank_pattern[anchored] = written->rank;
      if (written->alpha != alpha) alpha_pattern[anchored] = number(written->alpha);
    }
    config[prefix + "r"] = rank;
    config[prefix + "lora_alpha"] = number(alpha);
    config[prefix + "target_modules"] = target_modules(layers, names);
    config[prefix + "rank_pattern"] = std::move(rank_pattern);
    config[prefix + "alpha_pattern"] = std::move(alpha_pattern);
    config[prefix + "use_rslora"] = layers.front()->use_rslora;
    config[prefix + "use_dora"] = layers.front()->layer->is_dora_of_rows();
  }
  return config.dump();
}

// The one value of all layers, or "dynamic", as kohya says it.
template <typename T>
std::string common_text(const std::map<T, int64_t>& counts) {
  return counts.size() == 1 ? number(static_cast<double>(counts.begin()->first)).dump() : "dynamic";
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts)};
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::map<std::string, std::string> metadata_of(const std::vector<Written>& plan,
                                               const Spelling& spelling,
                                               const std::map<std::string, LoraTargets>& targets,
                                               const Description& description) {
  std::map<std::string, std::string> metadata = description.more;
  for (const std::string_view key : kOwnKeys) metadata.erase(std::string(key));
  std::map<int64_t, int64_t> ranks;
  std::map<double, int64_t> alphas;
  for (const Written& written : plan) {
    if (written.rank > 0) ++ranks[written.rank], ++alphas[written.alpha];
  }
  metadata["format"] = "pt";
  if (!ranks.empty()) {
    metadata["rank"] = metadata["ss_network_dim"] = common_text(ranks);
    metadata["alpha"] = metadata["ss_network_alpha"] = common_text(alphas);
  }
  if (spelling.alpha == Alpha::kMetadata)
    metadata["lora_adapter_metadata"] = adapter_metadata(plan, targets, description.target_modules);
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) metadata.emplace(key, value);
  };
  add("targets", joined(description.target_modules));
  add("base", description.base_model);
  add(formats::kLoraComponentKey, description.component);
  add("ss_network_module", "networks.lora");
  add("ss_sd_model_name", description.base_model);
  add("ss_base_model_version", description.architecture);
  add("ss_output_name", description.title);
  if (description.step > 0) add("ss_steps", std::to_string(description.step));
  if (description.epoch > 0) add("ss_epoch", std::to_string(description.epoch));
  add("modelspec.sai_model_spec", "1.0.0");
  if (!description.architecture.empty())
    add("modelspec.architecture", description.architecture + "/lora");
  add("modelspec.title", description.title);
  add("modelspec.date", now_utc());
  return metadata;
}

void write_entries(const std::string& path, const std::map<std::string, Entry>& entries,
                   const std::map<std::string, std::string>& metadata) {
  std::vector<formats::TensorEntry> header;
  for (const auto& [name, entry] : entries)
    header.push_back({name, files::file_dtype(entry.dtype), entry.shape, 0, 0});
  files::write_safetensors(path, std::move(header), metadata, [&](const std::string& name) {
    const Entry& entry = entries.at(name);
    at::Tensor value = entry.value();
    if (c10::isFloatingType(entry.dtype) && !at::isfinite(value).all().item<bool>())
      throw Error(ErrorCode::kNumerics,
                  display_path(path) + ": tensor " + quote_and_escape(name) +
                      ": holds values that are not finite as " + c10::toString(entry.dtype),
                  "they were not finite before, or are too large for this dtype", "LORA_VALUES");
    return value;
  });
}

[[noreturn]] void differs(const std::string& name, const std::string& how) {
  throw Error(ErrorCode::kDataLoss, quote_and_escape(name) + ": " + how);
}

// Throws Error when the file's additions are not the planned ones, to the bit.
void compare(const std::string& path, const std::vector<Written>& plan, const Spelling& spelling,
             const std::map<std::string, Entry>& entries) {
  const LoraFile file = LoraFile::open(path);
  if (file.tensors().index().tensors().size() != entries.size())
    throw Error(ErrorCode::kDataLoss, "it holds another number of tensors");
  for (const auto& [name, entry] : entries) {
    const at::Tensor value = file.tensors().read(name);
    const at::Tensor expected = entry.value().to(at::kCPU);
    if (value.scalar_type() != entry.dtype || !at::equal(value, expected))
      differs(name, "its values are others");
  }
  std::map<std::string, const LoraLayer*> layers;
  for (const LoraLayer& layer : file.layers()) layers.emplace(layer.name, &layer);
  for (const Written& written : plan) {
    if (written.rank == 0) continue;
    const auto found = layers.find(written.name);
    if (found == layers.end()) differs(written.name, "the layer is not found");
    const LoraLayer& layer = *found->second;
    if (layer.down != written.name + std::string(spelling.down) ||
        layer.up != written.name + std::string(spelling.up))
      differs(written.name, "its factors are others");
    if (layer.scale != written.scale())
      differs(written.name, "its scale is " + std::to_string(layer.scale) + " and not " +
                                std::to_string(written.scale()));
  }
}

}  // namespace

bool LayerWeights::is_dora_of_rows() const {
  const auto lengths = others.find(formats::lora_tensor_name(formats::LoraRole::kMagnitude));
  return down.defined() && others.size() == 1 && lengths != others.end() &&
         lengths->second.sizes() == at::IntArrayRef({up.size(0), 1});
}

Format parse_format(std::string_view name) {
  for (const Spelling& spelling : formats::lora_spellings()) {
    if (spelling.name == name) return spelling.format;
  }
  const std::vector<std::string> names = format_names();
  const std::string nearest = report::nearest_name(name, names);
  throw Error(ErrorCode::kInvalidArgument,
              "LoRA spelling " + quote_and_escape(name) + " is not known; there are " +
                  report::list_names(names),
              nearest.empty() ? "use diffusers" : "did you mean " + nearest + "?", "LORA_FORMAT");
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const Spelling& spelling : formats::lora_spellings()) names.emplace_back(spelling.name);
  return names;
}

void write_lora(const std::string& path, Format format, std::span<const LayerWeights> layers,
                const std::map<std::string, LoraTargets>& targets, at::ScalarType dtype,
                const Description& description) {
  const at::NoGradGuard no_grad;
  if (layers.empty())
    throw Error(ErrorCode::kInvalidArgument, display_path(path) + ": there is no layer to write",
                "choose targets that the model has", "LORA_NONE");
  const Spelling& spelling = formats::lora_spelling(format);
  const std::vector<Written> planned = plan(layers, spelling, targets);
  const std::map<std::string, Entry> entries = entries_of(planned, spelling, dtype);
  write_entries(path, entries, metadata_of(planned, spelling, targets, description));
  try {
    compare(path, planned, spelling, entries);
  } catch (const Error& error) {
    std::error_code ignored;
    std::filesystem::remove(std::filesystem::weakly_canonical(path, ignored), ignored);
    throw Error(
        ErrorCode::kDataLoss,
        display_path(path) + ": what was read back is not what was written: " + error.message(),
        "the file was removed: check the disk", "LORA_READ_BACK");
  }
}

}  // namespace atelier::lora
