#include "host/lora/extract.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"
#include "atelier/nn/layers.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/files/file_reader.h"
#include "host/files/outputs.h"
#include "host/lora/layer_names.h"
#include "host/lora/low_rank.h"
#include "host/lora/respell.h"
#include "host/model/components.h"
#include "host/model/random_weights.h"
#include "host/report/problems.h"
#include "host/weights/weight_binding.h"
#include "host/weights/weight_loading.h"

namespace atelier::lora {

namespace {

using files::display_path;
using formats::quote_and_escape;
using model::LoadedModel;
using model::LoadedPart;

constexpr std::string_view kWeight = ".weight";

// "blocks.12.attn.to_out.0": the first number, that of the block, is `{}`.
std::string kind_of(const std::string& path) {
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos)
      return path.substr(0, begin) + "{}" + path.substr(end);
    begin = end + 1;
  }
  return path;
}

bool is_targeted(const std::string& layer, const std::vector<std::string>& targets) {
  return targets.empty() ||
         std::any_of(targets.begin(), targets.end(), [&](const std::string& target) {
           if (target.find('*') != std::string::npos) return formats::glob_match(target, layer);
           return layer == target || layer.ends_with("." + target);
         });
}

// One component of a model whose weights are read one at a time, in float32.
class WeightReader {
 public:
  WeightReader(LoadedModel& model, const LoadedPart& part)
      : part_(part), root_(model.model().component(part.detection.component)) {
    const weights::WeightBinding binding =
        weights::bind_weights(model.family().weight_map(part.detection), part.detection.prefix,
                              part.checkpoint.index(), root_);
    for (const weights::BoundWeight& bound : binding.weights) bound_.emplace(bound.path, bound);
  }

  const std::string& file() const { return part_.checkpoint.name(); }
  const std::map<std::string, weights::BoundWeight>& weights() const { return bound_; }

  std::set<std::string> linear_layers() const {
    std::set<std::string> paths;
    root_.visit([&](nn::Module& module) {
      if (dynamic_cast<nn::Linear*>(&module) != nullptr) paths.insert(module.path());
    });
    return paths;
  }

  at::Tensor read(const std::string& path) const {
    weights::WeightBinding one;
    one.weights.push_back(bound_.at(path));
    weights::load_weights(one, part_.checkpoint, at::kFloat, at::kCPU);
    const at::Tensor value = one.weights[0].weight->draw();
    one.weights[0].weight->state().set_store(nullptr);
    return value.to(at::kFloat);
  }

 private:
  const LoadedPart& part_;
  nn::Module& root_;
  std::map<std::string, weights::BoundWeight> bound_;
};

struct Pair {
  std::string component;
  WeightReader base, tuned;
};

void check_same(const Pair& pair) {
  std::vector<std::string> differ;
  for (const auto& [path, bound] : pair.base.weights()) {
    const auto other = pair.tuned.weights().find(path);
    if (other == pair.tuned.weights().end()) {
      differ.push_back(path + " is missing");
    } else if (other->second.weight->sizes() != bound.weight->sizes()) {
      differ.push_back(path + " is " + c10::str(other->second.weight->sizes()) + ", and " +
                       c10::str(bound.weight->sizes()) + " in the base");
    }
  }
  for (const auto& [path, bound] : pair.tuned.weights()) {
    if (!pair.base.weights().contains(path)) differ.push_back(path + " is not in the base");
  }
  if (differ.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              display_path(pair.tuned.file()) + ": is no tuned " + display_path(pair.base.file()) +
                  ": " + report::list_names(differ, 3),
              "pass two checkpoints of one architecture", "LORA_SHAPE");
}

void check_same_numbers(const LoadedPart& base, const LoadedPart& tuned) {
  const std::vector<std::string> differ = model::differing_numbers(base.detection, tuned.detection);
  if (differ.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              display_path(tuned.checkpoint.name()) + ": its config differs from that of " +
                  display_path(base.checkpoint.name()) + " in " + report::list_names(differ, 3) +
                  ", which no LoRA can hold",
              "pass two checkpoints of one architecture", "LORA_SHAPE");
}

std::vector<Pair> common_parts(LoadedModel& base, LoadedModel& tuned) {
  std::vector<Pair> pairs;
  for (const LoadedPart& part : base.parts()) {
    const LoadedPart* other = tuned.find_part(part.detection.component);
    if (other == nullptr) continue;
    for (const LoadedPart* one : {&part, other}) model::refuse_random_weights(one->checkpoint);
    pairs.push_back(
        {part.detection.component, WeightReader(base, part), WeightReader(tuned, *other)});
    check_same(pairs.back());
    check_same_numbers(part, *other);
  }
  if (pairs.empty())
    throw Error(ErrorCode::kInvalidArgument, "the two models have no component in common",
                "pass the same component of both", "LORA_NONE");
  return pairs;
}

double squared(const at::Tensor& value) {
  const double norm = at::linalg_vector_norm(value.to(at::kDouble)).item<double>();
  return norm * norm;
}

void add(ExtractReport::Kind& kind, double change, double error) {
  ++kind.layers;
  kind.squared_change += change;
  kind.squared_error += error;
}

// Makes the layers of one component, and the report of them.
class Extraction {
 public:
  Extraction(const ExtractOptions& options, ExtractReport& report)
      : options_(options), report_(report) {}

  void take(const Pair& pair, const std::function<void()>& after_each) {
    const std::set<std::string> linears = pair.base.linear_layers();
    for (const auto& [path, bound] : pair.base.weights()) {
      const at::Tensor change = pair.tuned.read(path) - pair.base.read(path);
      after_each();
      const double size = squared(change);
      if (!std::isfinite(size))
        throw Error(ErrorCode::kNumerics,
                    "weight " + quote_and_escape(path) + ": holds values that are not finite",
                    "one of the checkpoints is damaged", "LORA_VALUES");
      if (size == 0) continue;
      const std::string layer =
          path.ends_with(kWeight) ? path.substr(0, path.size() - kWeight.size()) : std::string();
      if (linears.contains(layer) && is_targeted(layer, options_.target_modules)) {
        take_layer(pair.component, layer, change, size);
      } else {
        report_.left_out.push_back(path);
        report_.squared_left_out += size;
      }
    }
  }

  const std::vector<LayerWeights>& layers() const { return layers_; }
  const std::map<std::string, ExtractReport::Kind>& kinds() const { return kinds_; }

 private:
  void take_layer(const std::string& component, const std::string& layer, const at::Tensor& change,
                  double size) {
    const LowRank found = approximate(change, options_.rank);
    LayerWeights weights{component, layer, found.down.to(options_.dtype),
                         found.up.to(options_.dtype)};
    weights.alpha = static_cast<double>(weights.down.size(0));
    const double error =
        squared(change - at::mm(weights.up.to(at::kFloat), weights.down.to(at::kFloat)));
    ExtractReport::Kind& kind = kinds_[kind_of(layer)];
    kind.name = kind_of(layer);
    add(kind, size, error);
    add(report_.total, size, error);
    layers_.push_back(std::move(weights));
  }

  const ExtractOptions& options_;
  ExtractReport& report_;
  std::vector<LayerWeights> layers_;
  std::map<std::string, ExtractReport::Kind> kinds_;
};

// The layers of each file by its path.
std::map<std::string, std::vector<LayerWeights>> by_file(const std::vector<LayerWeights>& layers,
                                                         const ModelFamily& family,
                                                         const std::string& output) {
  // Denoisers, and files of one control, have layers of the same names.
  std::map<std::string_view, std::set<std::string>> alike;
  for (const LayerWeights& layer : layers) {
    const bool denoises = model::has_role(family, layer.component, Role::kDenoiser);
    alike[denoises ? "" : spec_name(layer.component)].insert(layer.component);
  }
  const bool is_for_each =
      std::ranges::any_of(alike, [](const auto& names) { return names.second.size() > 1; });
  std::map<std::string, std::vector<LayerWeights>> files;
  for (const LayerWeights& layer : layers) {
    const std::string path =
        is_for_each ? files::path_of_component(output, layer.component) : output;
    files[path].push_back(layer);
  }
  for (const auto& [path, unused] : files) files::refuse_to_replace("--output", path);
  return files;
}

}  // namespace

double ExtractReport::Kind::relative_error() const {
  return squared_change > 0 ? std::sqrt(squared_error / squared_change) : 0.0;
}

ExtractReport extract(LoadedModel& base, LoadedModel& tuned, const std::string& output,
                      const ExtractOptions& options,
                      const std::function<void(const ExtractProgress&)>& progress) {
  const at::NoGradGuard no_grad;
  if (options.rank < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(options.rank) + " is too small", "give 1 or more",
                "LORA_RANK");
  const std::vector<Pair> pairs = common_parts(base, tuned);
  ExtractProgress state;
  for (const Pair& pair : pairs) state.total += pair.base.weights().size();
  ExtractReport report;
  Extraction extraction(options, report);
  for (const Pair& pair : pairs) {
    extraction.take(pair, [&] {
      ++state.done;
      if (progress) progress(state);
    });
  }
  if (extraction.layers().empty())
    throw Error(ErrorCode::kInvalidArgument,
                report.left_out.empty() ? "the two models are equal: there is nothing to extract"
                                        : "no targeted linear layer differs; others do: " +
                                              report::list_names(report.left_out, 3),
                "pass the base and the tuned checkpoint, and targets that were trained",
                "LORA_NONE");
  for (const auto& [name, kind] : extraction.kinds()) report.kinds.push_back(kind);
  for (const auto& [path, layers] : by_file(extraction.layers(), base.family(), output)) {
    const std::string& component = layers.front().component;
    Description description;
    description.base_model =
        std::filesystem::path(base.find_part(component)->checkpoint.name()).filename().string();
    description.architecture = std::string(base.family().name());
    description.target_modules = options.target_modules;
    description.title = std::filesystem::path(path).stem().string();
    const auto is_first = [&](const LayerWeights& layer) { return layer.component == component; };
    if (std::ranges::all_of(layers, is_first))
      description.component = model::saved_name(base.family(), base.stages(), component);
    write_lora(path, options.format, respell(layers, base, options.format),
               LayerNames(&base).targets(), options.dtype, description);
    report.files.push_back(path);
  }
  return report;
}

}  // namespace atelier::lora
