#include "host/lora/convert.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/lora/respell.h"

namespace atelier::lora {

namespace fs = std::filesystem;

namespace {

using formats::LoraRole;

std::string alpha_name() {
  return std::string(formats::lora_tensor_name(LoraRole::kAlpha));
}

bool has_factors(const LoraLayer& layer) {
  return layer.form == LayerForm::kLora;
}

// rsLoRA is not kept in LoraLayer: the scale tells it.
bool is_rslora(const LoraLayer& layer) {
  if (!layer.alpha || layer.rank < 2) return false;
  const auto rank = static_cast<double>(layer.rank);
  return layer.scale != *layer.alpha / rank && layer.scale == *layer.alpha / std::sqrt(rank);
}

// 8-bit values have no arithmetic; bfloat16 holds them exactly.
at::ScalarType dtype_of(const LoraFile& file, const std::string& tensor) {
  const at::ScalarType dtype = file.tensors().index().find(tensor)->dtype;
  return c10::elementSize(dtype) == 1 ? at::kBFloat16 : dtype;
}

at::Tensor read(const LoraFile& file, const std::string& tensor) {
  return file.tensors().read(tensor, dtype_of(file, tensor));
}

at::Tensor scaled(const at::Tensor& value, double scale) {
  return scale == 1.0 ? value : value.to(at::kDouble).mul(scale).to(value.scalar_type());
}

// The tensors of one layer by what their roles are called; factors of a plain LoRA are not among
// them.
NamedTensors read_others(const LoraFile& file, const LoraLayer& layer) {
  using enum LoraRole;
  NamedTensors others;
  const auto add = [&](LoraRole role, at::Tensor value) {
    others.emplace(std::string(formats::lora_tensor_name(role)), std::move(value));
  };
  const std::pair<LoraRole, const std::string*> tensors[] = {{kHada1Down, &layer.down},
                                                             {kHada1Up, &layer.up},
                                                             {kHada2Down, &layer.down2},
                                                             {kHada2Up, &layer.up2},
                                                             {kKron1, &layer.kron1.whole},
                                                             {kKron1Left, &layer.kron1.left},
                                                             {kKron1Right, &layer.kron1.right},
                                                             {kKron2, &layer.kron2.whole},
                                                             {kKron2Left, &layer.kron2.left},
                                                             {kKron2Right, &layer.kron2.right},
                                                             {kDiff, &layer.diff}};
  for (const auto& [role, tensor] : tensors) {
    if (!has_factors(layer) && !tensor->empty()) add(role, read(file, *tensor));
  }
  if (!layer.magnitude.empty()) {
    const at::Tensor lengths = read(file, layer.magnitude);
    add(kMagnitude,
        layer.magnitude_axis == 0 ? lengths.reshape({-1, 1}) : lengths.reshape({1, -1}));
  }
  if (!layer.bias.empty()) add(kBiasDiff, scaled(read(file, layer.bias), layer.bias_scale));
  return others;
}

// Puts the scale of a layer without plain factors where its readers look for it: alpha over rank
// where something is factored, and otherwise the values themselves.
void put_scale(const LoraLayer& layer, NamedTensors& others) {
  if (layer.rank > 0) {
    if (layer.alpha)
      others.emplace(alpha_name(), at::scalar_tensor(layer.scale * static_cast<double>(layer.rank),
                                                     at::TensorOptions(at::kFloat)));
    return;
  }
  for (const LoraRole whole : {LoraRole::kKron1, LoraRole::kDiff}) {
    const auto found = others.find(formats::lora_tensor_name(whole));
    if (found != others.end()) found->second = scaled(found->second, layer.scale);
  }
}

void cast(NamedTensors& tensors, at::ScalarType dtype) {
  for (auto& [name, value] : tensors) {
    if (name != alpha_name() && value.is_floating_point()) value = value.to(dtype);
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// The names that the file says it targets; empty where it says none.
std::vector<std::string> read_targets(const std::map<std::string, std::string>& metadata) {
  if (const auto own = metadata.find("targets"); own != metadata.end()) return split(own->second);
  const auto found = metadata.find("lora_adapter_metadata");
  if (found == metadata.end()) return {};
  std::vector<std::string> targets;
  const auto config = nlohmann::json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return {};
  for (const auto& [key, value] : config.items()) {
    if (key != "target_modules" && !key.ends_with(".target_modules")) continue;
    if (!value.is_array()) continue;
    for (const auto& name : value) {
      if (name.is_string()) targets.push_back(name.get<std::string>());
    }
  }
  return targets;
}

}  // namespace

LayerWeights read_layer(const LoraFile& file, const LoraLayer& layer, const LayerNames& names) {
  const LayerNames::Layer name = names.find(layer.name);
  LayerWeights weights{name.component, name.path, {}, {}};
  weights.others = read_others(file, layer);
  if (!has_factors(layer)) {
    put_scale(layer, weights.others);
    return weights;
  }
  weights.down = file.read_down(layer, dtype_of(file, layer.down));
  weights.up = file.read_up(layer, dtype_of(file, layer.up));
  weights.use_rslora = is_rslora(layer);
  weights.alpha = layer.alpha.value_or(static_cast<double>(layer.rank));
  return weights;
}

Description read_description(const LoraFile& file, const LayerNames& names) {
  Description description;
  description.more = file.tensors().metadata();
  for (const char* hash : {"sshs_model_hash", "sshs_legacy_hash", "modelspec.hash_sha256"})
    description.more.erase(hash);
  description.target_modules = read_targets(description.more);
  description.architecture = names.family();
  return description;
}

at::ScalarType factor_dtype(const LoraFile& file) {
  std::map<at::ScalarType, int64_t> counts;
  for (const LoraLayer& layer : file.layers()) {
    if (layer.down.empty()) continue;
    ++counts[dtype_of(file, layer.down)];
    ++counts[dtype_of(file, layer.up)];
  }
  at::ScalarType most = at::kFloat;
  int64_t most_count = 0;
  for (const auto& [dtype, count] : counts) {
    if (count <= most_count) continue;
    most = dtype;
    most_count = count;
  }
  return most;
}

void check_output(const LoraFile& file, const std::string& output) {
  for (const std::string& input : file.tensors().files()) {
    std::error_code failure;
    if (fs::equivalent(input, output, failure) && !failure)
      throw Error(ErrorCode::kInvalidArgument,
                  files::display_path(output) + ": is the file that is read",
                  "name another file to write", "LORA_OUTPUT");
  }
}

void convert(const LoraFile& file, const std::string& output, Format format,
             std::optional<at::ScalarType> dtype, const LayerNames& names) {
  const at::NoGradGuard no_grad;
  check_output(file, output);
  names.check(file, /*wants_dots=*/format != Format::kKohya);
  std::vector<LayerWeights> layers;
  for (const LoraLayer& layer : file.layers()) {
    layers.push_back(read_layer(file, layer, names));
    if (dtype) cast(layers.back().others, *dtype);
  }
  if (names.model() != nullptr) layers = respell(std::move(layers), *names.model(), format);
  Description description = read_description(file, names);
  description.title = fs::path(output).stem().string();
  write_lora(output, format, layers, names.targets(), dtype.value_or(factor_dtype(file)),
             description);
}

}  // namespace atelier::lora
