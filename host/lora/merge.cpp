#include "host/lora/merge.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"

#include "formats/escape.h"
#include "formats/lora_names.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/lora/added_weight.h"
#include "host/lora/convert.h"
#include "host/lora/low_rank.h"
#include "host/lora/targets.h"
#include "host/model/components.h"
#include "host/model/random_weights.h"
#include "host/weights/component_writer.h"
#include "host/weights/weight_binding.h"
#include "host/weights/weight_loading.h"

namespace atelier::lora {

namespace fs = std::filesystem;

namespace {

using files::display_path;
using formats::quote_and_escape;

// ---- Into one LoRA ----

// The factors of one layer, of all files that add to it.
struct Factors {
  std::vector<at::Tensor> ups, downs;
  std::string from;  // the first file and its name of the layer
};
using FactorsByLayer = std::map<std::pair<std::string, std::string>, Factors>;

void check_product(const LoraFile& file, const LoraLayer& layer) {
  if (layer.is_product() && layer.bias.empty()) return;
  const std::string& tensor = !layer.bias.empty()        ? layer.bias
                              : !layer.magnitude.empty() ? layer.magnitude
                                                         : layer.any_tensor();
  throw Error(ErrorCode::kUnsupported,
              display_path(file.path()) + ": tensor " + quote_and_escape(tensor) +
                  ": the layer is no product of two factors",
              "--plugin and --model_paths merge any form into the model's weights", "LORA_KIND");
}

void collect(const MergeSource& source, const LayerNames& names, FactorsByLayer& layers) {
  for (const LoraLayer& layer : source.file.layers()) {
    check_product(source.file, layer);
    const LayerNames::Layer name = names.find(layer.name);
    const std::string from =
        display_path(source.file.path()) + ": layer " + quote_and_escape(layer.name);
    const auto [found, is_new] = layers.try_emplace({name.component, name.path});
    Factors& parts = found->second;
    if (is_new) {
      parts.from = from;
    } else if (parts.ups[0].size(0) != layer.out || parts.downs[0].size(1) != layer.in) {
      throw Error(ErrorCode::kInvalidArgument,
                  from + ": is [" + std::to_string(layer.out) + ", " + std::to_string(layer.in) +
                      "], and [" + std::to_string(parts.ups[0].size(0)) + ", " +
                      std::to_string(parts.downs[0].size(1)) + "] in " + parts.from,
                  "merge LoRAs of one model", "LORA_SHAPE");
    }
    parts.downs.push_back(source.file.read_down(layer, at::kFloat));
    parts.ups.push_back(
        source.file.read_up(layer, at::kFloat).to(at::kDouble).mul(source.strength * layer.scale));
  }
}

double squared(const at::Tensor& up, const at::Tensor& down) {
  // |up * down|² without making the product.
  const at::Tensor a = up.to(at::kDouble), b = down.to(at::kDouble);
  return at::sum(at::mm(a.t(), a) * at::mm(b, b.t())).item<double>();
}

LayerWeights joined(const std::string& component, const std::string& path, const Factors& parts,
                    std::optional<int64_t> rank, double& lost, double& whole) {
  const at::Tensor up = at::cat(parts.ups, 1), down = at::cat(parts.downs, 0);
  LayerWeights layer{component, path, down, up.to(at::kFloat)};
  whole += squared(up, down);
  if (rank && *rank < down.size(0)) {
    const LowRank cut = truncate(up, down, *rank);
    layer.down = cut.down;
    layer.up = cut.up;
    lost += squared(at::cat({up, cut.up.to(at::kDouble).neg()}, 1), at::cat({down, cut.down}, 0));
  }
  layer.alpha = static_cast<double>(layer.down.size(0));
  return layer;
}

// The denoiser that all sources say they are for; empty where one does not. Experts have layers of
// the same names, which must not be added up.
std::string common_component(std::span<const MergeSource> sources, const LayerNames& names) {
  std::map<std::string, const LoraFile*> said;
  for (const MergeSource& source : sources) {
    const auto& layers = source.file.layers();
    const bool has_default = std::any_of(layers.begin(), layers.end(), [&](const LoraLayer& layer) {
      return names.find(layer.name).component == names.default_component();
    });
    if (has_default)
      said.emplace(source.component.empty() ? source.file.component() : source.component,
                   &source.file);
  }
  const auto first = said.find("");
  const bool is_open = first != said.end();
  if (is_open) said.erase(first);
  if (said.size() > 1)
    throw Error(ErrorCode::kInvalidArgument,
                display_path(said.begin()->second->path()) + " is for the component " +
                    said.begin()->first + ", and " + display_path(said.rbegin()->second->path()) +
                    " for " + said.rbegin()->first,
                "merge LoRAs of one component", "LORA_COMPONENT");
  return is_open || said.empty() ? std::string() : said.begin()->first;
}

// The files and strengths that something was made of, as JSON.
std::string sources_text(std::span<const MergeSource> sources) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const MergeSource& source : sources)
    list.push_back({{"file", fs::path(source.file.path()).filename().string()},
                    {"strength", source.strength}});
  return list.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

MergeReport merge_loras(std::span<const MergeSource> sources, const std::string& output,
                        Format format, std::optional<int64_t> rank, at::ScalarType dtype,
                        LayerNames& names) {
  const at::NoGradGuard no_grad;
  if (rank && *rank < 1)
    throw Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(*rank) + " is too small",
                "give 1 or more", "LORA_RANK");
  for (const MergeSource& source : sources) {
    check_output(source.file, output);
    names.learn(source.file);
  }
  Description description;
  description.component = common_component(sources, names);
  FactorsByLayer layers;
  for (const MergeSource& source : sources) {
    names.check(source.file, /*wants_dots=*/format != Format::kKohya);
    if (source.strength != 0) collect(source, names, layers);
  }
  MergeReport report;
  double lost = 0, whole = 0;
  std::vector<LayerWeights> written;
  for (const auto& [name, parts] : layers) {
    written.push_back(joined(name.first, name.second, parts, rank, lost, whole));
    report.most_rank = std::max(report.most_rank, written.back().down.size(0));
  }
  report.layers = written.size();
  report.relative_error = whole > 0 ? std::sqrt(std::max(lost, 0.0) / whole) : 0.0;
  description.title = fs::path(output).stem().string();
  description.architecture = names.family();
  description.more["atelier.merged"] = sources_text(sources);
  for (const MergeSource& source : sources) {
    for (const char* key : {"base", "ss_sd_model_name", "ss_base_model_version"}) {
      const auto found = source.file.tensors().metadata().find(key);
      if (found != source.file.tensors().metadata().end()) description.more.insert(*found);
    }
  }
  write_lora(output, format, written, names.targets(), dtype, description);
  return report;
}

// ---- Into a model ----

namespace {

// What LoRAs add to the weights of a model.
struct Additions {
  std::map<Weight*, std::vector<Addition>> by_weight;
  std::set<std::string> components;
  std::vector<std::string> unmatched;  // layers and tensors of the LoRAs that are nothing here

  void add(Difference difference, double strength, const Target& target) {
    components.insert(target.component);
    const auto shared = std::make_shared<const Difference>(std::move(difference));
    for (const TargetSlice& slice : target.slices)
      by_weight[slice.weight].push_back({.difference = shared,
                                         .strength = strength,
                                         .axis = slice.axis,
                                         .difference_start = slice.name_start,
                                         .weight_start = slice.layer_start,
                                         .length = slice.length});
  }

  void add(const MergeSource& source, const Targets& targets) {
    const LoraFile& file = source.file;
    const Match match = targets.match(file, source.component);
    unmatched.insert(unmatched.end(), match.unmatched.begin(), match.unmatched.end());
    if (source.strength == 0) return;
    for (const Match::Pair& pair : match.pairs)
      add(file.read_difference(file.layers()[pair.layer]), source.strength, *pair.target);
    for (const Match::Pair& pair : match.biases)
      add(file.read_bias(file.layers()[pair.layer]), source.strength, *pair.target);
  }
};

// A part of a component's tensor and the weight that it is a part of.
struct TensorSlice {
  const weights::BoundWeight* bound;
  const weights::WeightSlice* slice;
};

// The tensors of one checkpoint with what is added to them.
class MergedTensors {
 public:
  MergedTensors(const model::LoadedPart& part, weights::WeightBinding binding,
                const Additions& additions)
      : part_(part), binding_(std::move(binding)), additions_(additions) {
    for (const weights::BoundWeight& bound : binding_.weights) {
      if (!additions.by_weight.contains(bound.weight)) continue;
      for (const weights::WeightSlice& slice : bound.slices)
        changed_[slice.tensor].push_back({&bound, &slice});
    }
    for (const auto& [tensor, slices] : changed_) check_dtype(tensor);
  }

  size_t changed() const { return changed_.size(); }

  at::Tensor value(const std::string& tensor) {
    const auto found = changed_.find(tensor);
    if (found == changed_.end()) return part_.checkpoint.read(tensor);
    const at::ScalarType dtype = part_.checkpoint.index().find(tensor)->dtype;
    at::Tensor value = part_.checkpoint.read(tensor, at::kFloat);
    for (const auto& [bound, slice] : found->second) {
      const at::Tensor sum = merged(*bound);
      if (slice->axis < 0) {
        value = sum;
        continue;
      }
      value.narrow(slice->axis, slice->tensor_start, slice->length)
          .copy_(sum.narrow(slice->axis, slice->weight_start, slice->length));
    }
    return value.to(dtype);
  }

 private:
  void check_dtype(const std::string& tensor) const {
    const at::ScalarType dtype = part_.checkpoint.index().find(tensor)->dtype;
    if (c10::isFloatingType(dtype) && c10::elementSize(dtype) > 1) return;
    throw Error(ErrorCode::kUnsupported,
                display_path(part_.checkpoint.name()) + ": tensor " + quote_and_escape(tensor) +
                    ": is stored as " + c10::toString(dtype) +
                    ", which would round most of the LoRA away",
                "merge into the checkpoint of 16 bits", "LORA_DTYPE");
  }

  // The weight with everything added, float32. The last one is kept: the tensors that a weight is
  // joined of mostly follow each other.
  at::Tensor merged(const weights::BoundWeight& bound) {
    if (last_ == &bound) return sum_;
    weights::WeightBinding one;
    one.weights.push_back(bound);
    weights::load_weights(one, part_.checkpoint, at::kFloat, at::kCPU);
    sum_ = AddedWeight(bound.weight->state().store(), additions_.by_weight.at(bound.weight)).draw();
    bound.weight->state().set_store(nullptr);
    last_ = &bound;
    return sum_;
  }

  const model::LoadedPart& part_;
  weights::WeightBinding binding_;
  const Additions& additions_;
  std::map<std::string, std::vector<TensorSlice>> changed_;
  const weights::BoundWeight* last_ = nullptr;
  at::Tensor sum_;
};

void write_merged(MergedTensors& tensors, const model::LoadedPart& part, const std::string& path,
                  const std::map<std::string, std::string>& metadata,
                  const std::function<void(const MergeProgress&)>& progress) {
  std::vector<formats::TensorEntry> entries;
  for (const auto& [name, meta] : part.checkpoint.index().tensors())
    entries.push_back({name, files::file_dtype(meta.dtype), meta.shape, 0, 0});
  MergeProgress state{part.detection.component, 0, entries.size()};
  const auto value = [&](const std::string& name) {
    at::Tensor value = tensors.value(name);
    ++state.done;
    if (progress) progress(state);
    return value;
  };
  weights::write_component(path, part.checkpoint, std::move(entries), metadata, value);
}

// Checks that `path` is no file of the model, and that nothing is there yet.
void check_new(const model::LoadedPart& part, const std::string& path) {
  for (const std::string& input : part.checkpoint.files()) {
    std::error_code failure;
    if (fs::equivalent(input, path, failure) && !failure)
      throw Error(ErrorCode::kInvalidArgument, display_path(path) + ": is a file of the model",
                  "name another file to write", "LORA_OUTPUT");
  }
  if (std::error_code failure; fs::exists(path, failure))
    throw Error(ErrorCode::kInvalidArgument, display_path(path) + " is there already",
                "name another file, or remove that one first", "OUTPUT_EXISTS");
}

}  // namespace

std::vector<MergedComponent> merge_into_model(
    std::span<const MergeSource> sources, model::LoadedModel& model, const std::string& output,
    const std::function<void(const MergeProgress&)>& progress) {
  const at::NoGradGuard no_grad;
  const Targets targets(model);
  Additions additions;
  for (const MergeSource& source : sources) {
    check_output(source.file, output);
    additions.add(source, targets);
  }
  if (additions.components.empty())
    throw Error(ErrorCode::kInvalidArgument, display_path(output) + ": nothing is added",
                "give a LoRA with a strength other than 0", "LORA_NONE");
  const auto path_of = [&](const std::string& component) {
    return additions.components.size() == 1 ? output : files::path_of_component(output, component);
  };
  for (const model::LoadedPart& part : model.parts()) {
    if (!additions.components.contains(part.detection.component)) continue;
    model::refuse_random_weights(part.checkpoint);
    check_new(part, path_of(part.detection.component));
  }
  std::vector<MergedComponent> merged;
  for (const model::LoadedPart& part : model.parts()) {
    const std::string& component = part.detection.component;
    if (!additions.components.contains(component)) continue;
    const std::string path = path_of(component);
    if (part.checkpoint.has_scales())
      throw Error(ErrorCode::kUnsupported,
                  display_path(part.checkpoint.name()) +
                      ": is stored in 8 bits with scales, which would round most of the LoRA away",
                  "merge into the checkpoint of 16 bits", "LORA_DTYPE");
    weights::WeightBinding binding =
        weights::bind_weights(model.family().weight_map(part.detection), part.detection.prefix,
                              part.checkpoint.index(), model.model().component(component));
    MergedTensors tensors(part, std::move(binding), additions);
    std::map<std::string, std::string> metadata = part.checkpoint.metadata();
    metadata.erase(files::kQuantizationKey);
    metadata.emplace("format", "pt");
    metadata["atelier.merged"] = sources_text(sources);
    const std::string said = model::saved_name(model.family(), model.stages(), component);
    if (model::has_twin(model.family(), component) && !said.empty())
      metadata[formats::kLoraComponentKey] = said;
    write_merged(tensors, part, path, metadata, progress);
    merged.push_back({component, path, tensors.changed()});
  }
  merged.front().unmatched = std::move(additions.unmatched);
  return merged;
}

}  // namespace atelier::lora
