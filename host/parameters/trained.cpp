#include "host/parameters/trained.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/weight_state.h"
#include "atelier/plugin.h"

#include "formats/escape.h"
#include "formats/lora_names.h"
#include "host/files/file_reader.h"
#include "host/generate/metadata.h"
#include "host/lora/layer_names.h"
#include "host/lora/lora_file.h"
#include "host/lora/lora_writer.h"
#include "host/lora/respell.h"
#include "host/lora/targets.h"
#include "host/model/components.h"
#include "host/random/counter.h"
#include "host/report/problems.h"
#include "host/weights/component_writer.h"
#include "host/weights/storage.h"

namespace atelier::parameters {

using order::LoraSettings;
using order::Training;

using model::LoadedModel;
using model::LoadedPart;

std::vector<optim::Group> optimizer_groups(const Training& config,
                                           std::vector<optim::Parameter> weights,
                                           std::vector<optim::Parameter> a,
                                           std::vector<optim::Parameter> b) {
  std::vector<optim::Group> groups = {
      {std::move(weights), 1.0, config.weight_decay},
      {std::move(a), 1.0, config.weight_decay},
      {std::move(b), config.lora.loraplus_lr_ratio, config.weight_decay},
  };
  std::erase_if(groups, [](const optim::Group& group) { return group.parameters.empty(); });
  return groups;
}

TrainedTensors::TrainedTensors(LoadedModel& model, Selection selection, const Training& config,
                               const Layout& layout, distributed::Group* group)
    : model_(model),
      selection_(std::move(selection)),
      config_(config),
      placement_(std::in_place, model, selection_, config, layout, group) {
  const at::NoGradGuard no_grad;
  for (const Selection::AdaptedLayer& layer : selection_.layers) adapt(layer);
  if (!config.lora.checkpoint.empty()) load_lora_checkpoint();
  std::vector<optim::Parameter> weights, a, b;
  for (const Selection::TrainedWeight& trained : selection_.weights)
    weights.push_back(placement_->add(trained));
  const auto add_factors = [&](std::vector<optim::Parameter>& factors,
                               at::Tensor AdaptedLayer::*factor, const char* name) {
    for (const AdaptedLayer& adapted : adapted_)
      factors.push_back(placement_->add(adapted.layer.component + "." + adapted.layer.path + name,
                                        adapted.*factor));
  };
  add_factors(a, &AdaptedLayer::a, ".lora_A");
  add_factors(b, &AdaptedLayer::b, ".lora_B");
  placement_->share_out(optimizer_groups(config, std::move(weights), std::move(a), std::move(b)));
}

TrainedTensors::~TrainedTensors() {
  placement_.reset();  // while leaves are leaves
  for (const AdaptedLayer& adapted : adapted_) {
    std::erase_if(adapted.layer.linear->adapters,
                  [&](const ops::Adapter& adapter) { return adapter.a.is_same(adapted.a); });
  }
  for (const auto& trained : selection_.weights) trained.weight->state().set_trainable(false);
}

double TrainedTensors::lora_scale() const {
  const auto rank = static_cast<double>(config_.lora.rank);
  const double alpha = config_.lora.alpha.value_or(rank);
  return alpha / (config_.lora.use_rslora ? std::sqrt(rank) : rank);
}

void TrainedTensors::adapt(const Selection::AdaptedLayer& layer) {
  const uint64_t seed = random::stream_seed(config_.seed, random::Stream::kInit);
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(model_.device());
  const int64_t in = layer.linear->in_features(), out = layer.linear->out_features();
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  const auto index = static_cast<uint32_t>(adapted_.size());
  at::Tensor a = at::empty({config_.lora.rank, in}, at::kFloat);
  a.uniform_(-bound, bound,
             at::detail::createCPUGenerator(random::below(UINT64_MAX, seed, index, 0)));
  AdaptedLayer adapted{layer, a.to(model_.device()), at::zeros({out, config_.lora.rank}, options)};
  adapted.a.requires_grad_(true);
  adapted.b.requires_grad_(true);
  layer.linear->adapters.push_back({adapted.a, adapted.b, lora_scale(), 0.0});
  adapted_.push_back(std::move(adapted));
}

// What check_lora_checkpoint let through.
void TrainedTensors::load_lora_checkpoint() {
  const lora::LoraFile file = lora::LoraFile::open(config_.lora.checkpoint);
  const lora::Targets targets(model_);
  const lora::Match match = targets.match(file, config_.lora.base_models.front());
  for (const auto& pair : match.pairs) {
    const lora::LoraLayer& layer = file.layers()[pair.layer];
    for (AdaptedLayer& adapted : adapted_) {
      if (adapted.layer.linear != pair.target->slices.front().linear) continue;
      adapted.a.copy_(file.read_down(layer, at::kFloat));
      adapted.b.copy_(file.read_up(layer, at::kFloat)).mul_(layer.scale / lora_scale());
    }
  }
}

void check_lora_checkpoint(LoadedModel& model, const Selection& selection,
                           const LoraSettings& settings, report::Problems& problems) {
  const lora::LoraFile file = lora::LoraFile::open(settings.checkpoint);
  const lora::Targets targets(model);
  const lora::Match match = targets.match(file, settings.base_models.front());
  const std::string name = "--lora_checkpoint: " + files::display_path(file.path()) + ": ";
  if (!match.unmatched.empty())
    problems.add(name + "not in this model: " + report::list_names(match.unmatched, 5),
                 "use a LoRA of this model");
  // Layers by what is wrong with them, and what to do: what is wrong with one mostly is with all.
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> refused;
  for (const auto& pair : match.pairs) {
    const lora::LoraLayer& layer = file.layers()[pair.layer];
    const nn::Linear* linear = pair.target->slices.front().linear;
    const bool is_trained =
        std::any_of(selection.layers.begin(), selection.layers.end(),
                    [&](const Selection::AdaptedLayer& one) { return one.linear == linear; });
    const auto refuse = [&](const std::string& what, const std::string& hint) {
      refused[{what, hint}].push_back(layer.name);
    };
    if (!is_trained || pair.target->slices.size() != 1) {
      refuse("not among the layers that are trained",
             "choose them with --lora_target_modules as the file has them");
    } else if (at::IntArrayRef(layer.shape) != linear->weight->sizes()) {
      refuse("a part of a layer that is trained",
             "begin with what 'atelier lora convert FILE OUT --lora_format comfy --plugin " +
                 std::string(model.family().name()) +
                 " --model_paths MODEL' makes of it, whose layers are whole");
    } else if (layer.form != lora::LayerForm::kLora || !layer.magnitude.empty() ||
               !layer.bias.empty()) {
      refuse("more than two factors", "begin with a plain LoRA");
    } else if (layer.rank != settings.rank) {
      refuse("rank " + std::to_string(layer.rank) + ", and --lora_rank is " +
                 std::to_string(settings.rank),
             "use --lora_rank " + std::to_string(layer.rank));
    }
  }
  for (const auto& [why, layers] : refused)
    problems.add(name + why.first + ": " + report::list_names(layers, 2), why.second);
}

int64_t TrainedTensors::count() const {
  int64_t count = 0;
  for (const optim::Group& group : groups()) {
    for (const optim::Parameter& parameter : group.parameters) count += parameter.leaf.numel();
  }
  return count;
}

void TrainedTensors::set_training(bool is_training) {
  for (const AdaptedLayer& adapted : adapted_) {
    for (ops::Adapter& adapter : adapted.layer.linear->adapters) {
      if (adapter.a.is_same(adapted.a)) adapter.dropout = is_training ? config_.lora.dropout : 0.0;
    }
  }
}

NamedTensors TrainedTensors::values() const {
  NamedTensors values;
  for (const optim::Group& group : kept()) {
    for (const optim::Parameter& parameter : group.parameters)
      values.emplace(parameter.name, parameter.leaf.detach().to(parameter.dtype()));
  }
  return values;
}

optim::Shards TrainedTensors::shards() const {
  optim::Shards shards;
  for (const optim::Group& group : kept()) {
    for (const optim::Parameter& parameter : group.parameters)
      if (parameter.shard) shards.emplace(parameter.name, *parameter.shard);
  }
  return shards;
}

void TrainedTensors::load(const NamedTensors& values) {
  const at::NoGradGuard no_grad;
  const NamedTensors own = this->values();
  report::Problems problems;
  for (const auto& [name, tensor] : own) {
    const auto found = values.find(name);
    if (found == values.end()) {
      problems.add("trained tensor " + formats::quote_and_escape(name) + " is missing");
    } else if (found->second.sizes() != tensor.sizes() ||
               found->second.scalar_type() != tensor.scalar_type()) {
      problems.add("trained tensor " + formats::quote_and_escape(name) +
                   " has another shape or dtype");
    }
  }
  for (const auto& [name, tensor] : values) {
    if (!own.contains(name))
      problems.add("tensor " + formats::quote_and_escape(name) + " is not trained in this run");
  }
  problems.throw_if_any();
  for (const optim::Group& group : kept()) {
    for (const optim::Parameter& parameter : group.parameters)
      at::Tensor(parameter.leaf).detach().copy_(values.find(parameter.name)->second);
  }
  if (placement_->has_wholes()) placement_->adopt();
}

std::vector<WeightFile> weight_files(const Selection& selection, const std::string& stem) {
  std::vector<WeightFile> files;
  const auto add = [&](const std::string& component, bool is_lora) {
    const auto is_same = [&](const WeightFile& file) {
      return file.component == component && file.is_lora == is_lora;
    };
    if (std::none_of(files.begin(), files.end(), is_same))
      files.push_back({component, is_lora, stem + "." + component + ".safetensors"});
  };
  for (const auto& layer : selection.layers) add(layer.component, /*is_lora=*/true);
  const size_t loras = files.size();
  for (const auto& trained : selection.weights) add(trained.component, /*is_lora=*/false);
  for (size_t i = 0; i < loras; ++i)
    files[i].path =
        stem + ".lora" + (loras > 1 ? "." + files[i].component : std::string()) + ".safetensors";
  if (files.size() == 1) files.front().path = stem + ".safetensors";
  std::ranges::sort(files, {}, &WeightFile::path);
  return files;
}

std::vector<std::string> TrainedTensors::save(const std::string& stem, int64_t step, int64_t epoch,
                                              bool writes) const {
  std::vector<std::string> paths;
  for (const WeightFile& file : weight_files(selection_, stem)) {
    if (!file.is_lora) {
      save_whole(file, step, writes);
    } else if (writes) {
      save_lora(file, step, epoch);
    }
    if (writes) paths.push_back(file.path);
  }
  return paths;
}

bool TrainedTensors::save_together() const {
  return std::ranges::any_of(selection_.weights, [&](const auto& trained) {
    return model_.is_divided(trained.component);
  });
}

uint64_t TrainedTensors::saved_bytes() const {
  constexpr uint64_t kPerTensor = 512;
  const std::optional<at::ScalarType> dtype = weights::dtype_or_auto(config_.output.save_dtype);
  uint64_t bytes = 0;
  for (const WeightFile& file : weight_files(selection_, "")) {
    if (file.is_lora) {
      const size_t size = c10::elementSize(dtype.value_or(at::kFloat));
      for (const lora::LayerWeights& layer : lora_layers(file.component))
        bytes += 3 * kPerTensor + size * (layer.down.numel() + layer.up.numel());
      continue;
    }
    const auto& index = model_.find_part(file.component)->checkpoint.index();
    for (const auto& [name, meta] : index.tensors()) {
      const size_t size = dtype ? c10::elementSize(*dtype)
                                : std::max(c10::elementSize(meta.dtype),
                                           c10::elementSize(model_.dtype(file.component)));
      bytes += kPerTensor + size * c10::multiply_integers(meta.shape);
    }
  }
  return bytes;
}

// In the names and cuts of the file's spelling.
std::vector<lora::LayerWeights> TrainedTensors::lora_layers(const std::string& component) const {
  std::vector<lora::LayerWeights> layers;
  for (const AdaptedLayer& adapted : adapted_) {
    if (adapted.layer.component != component) continue;
    layers.push_back({component, adapted.layer.path, adapted.a.detach(), adapted.b.detach(),
                      config_.lora.alpha.value_or(static_cast<double>(config_.lora.rank)),
                      config_.lora.use_rslora});
  }
  return lora::respell(std::move(layers), model_, config_.lora.format);
}

void TrainedTensors::save_lora(const WeightFile& file, int64_t step, int64_t epoch) const {
  const LoadedPart& part = *model_.find_part(file.component);
  lora::Description description;
  description.base_model = generate::short_path(part.checkpoint.name());
  description.architecture = part.detection.variant;
  description.target_modules = config_.lora.target_modules;
  description.component = model::saved_name(model_.family(), model_.stages(), file.component);
  description.step = step;
  description.epoch = epoch;
  description.more = {{"atelier_version", ATELIER_SDK_VERSION},
                      {"ss_learning_rate", c10::str(config_.learning_rate)},
                      {"ss_seed", std::to_string(config_.seed)}};
  lora::write_lora(file.path, config_.lora.format, lora_layers(file.component),
                   {{file.component, lora::file_targets(model_, part)}},
                   weights::dtype_or_auto(config_.output.save_dtype).value_or(at::kFloat),
                   description);
}

void TrainedTensors::save_whole(const WeightFile& file, int64_t step, bool writes) const {
  if (!writes && !model_.is_divided(file.component)) return;
  const LoadedPart& part = *model_.find_part(file.component);
  const WeightMap rules = model_.family().weight_map(part.detection);
  std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"atelier_version", ATELIER_SDK_VERSION}, {"step", std::to_string(step)}};
  const std::string said = model::saved_name(model_.family(), model_.stages(), file.component);
  if (model::has_twin(model_.family(), file.component) && !said.empty())
    metadata[formats::kLoraComponentKey] = said;
  weights::save_component(model_.model().component(file.component), rules, part.detection.prefix,
                          writes ? file.path : std::string(), metadata, &part.checkpoint,
                          weights::dtype_or_auto(config_.output.save_dtype),
                          /*comes_from_all=*/model_.is_divided(file.component));
}

}  // namespace atelier::parameters
