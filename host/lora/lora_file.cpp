#include "host/lora/lora_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"

namespace atelier::lora {

namespace fs = std::filesystem;

namespace {

using files::Checkpoint;
using files::display_path;
using formats::LoraRole;
using formats::quote_and_escape;

// The file that stands for `path`.
std::string find_file(const std::string& path) {
  std::error_code failure;
  if (!fs::is_directory(path, failure)) return path;
  std::vector<std::string> others;
  for (const char* name : {"pytorch_lora_weights.safetensors", "adapter_model.safetensors"}) {
    std::string file = (fs::path(path) / name).string();
    if (fs::is_regular_file(file, failure)) return file;
  }
  for (const auto& entry : fs::directory_iterator(path, failure)) {
    if (entry.path().extension() == ".safetensors") others.push_back(entry.path().string());
  }
  if (others.size() == 1) return others.front();
  throw Error(ErrorCode::kNotFound,
              display_path(path) + ": " +
                  (others.empty() ? "this folder holds no .safetensors file"
                                  : "this folder holds " + std::to_string(others.size()) +
                                        " .safetensors files"),
              "name the LoRA's file", "LORA_FILE");
}

// The tensors of each layer, by its name; names that say nothing go to `unknown`.
std::map<std::string, LayerTensors> tensors_by_layer(const Checkpoint& file,
                                                     const std::string& path,
                                                     std::vector<std::string>& unknown) {
  std::map<std::string, LayerTensors> layers;
  for (const auto& [tensor, meta] : file.index().tensors()) {
    const formats::LoraTensorName name = formats::parse_lora_tensor(tensor);
    if (name.role == LoraRole::kUnknown) {
      unknown.push_back(tensor);
      continue;
    }
    if (name.role == LoraRole::kUnsupported)
      throw Error(ErrorCode::kUnsupported,
                  in_file(path, tensor) + ": " + name.kind + " is not supported",
                  "LoRA, DoRA, LoHa, LoKr and whole differences are", "LORA_KIND");
    LayerTensors& layer = layers[name.layer];
    std::string& slot = name.part ? layer.up_part(*name.part) : layer[name.role];
    if (!slot.empty())
      throw Error(ErrorCode::kUnsupported,
                  in_file(path, tensor) + ": " + quote_and_escape(slot) +
                      " is the same factor of the same layer",
                  "save each LoRA as a file of its own", "LORA_TWICE");
    slot = tensor;
  }
  return layers;
}

}  // namespace

LoraFile LoraFile::open(const std::string& path) {
  const std::string chosen = find_file(path);
  LoraFile lora(Checkpoint::open(chosen, {chosen}));
  const Checkpoint& file = lora.file_;
  const auto layers = tensors_by_layer(file, path, lora.unknown_);
  if (std::none_of(layers.begin(), layers.end(),
                   [](const auto& item) { return item.second.adds(); }))
    throw Error(ErrorCode::kInvalidArgument,
                display_path(path) + ": is no LoRA (" +
                    std::to_string(file.index().tensors().size()) +
                    " tensors, and no pair of lora_A and lora_B, or lora_down and lora_up)",
                "atelier inspect says what it is", "LORA_NONE");
  const AdapterConfig config = AdapterConfig::of(file);
  for (const auto& [name, tensors] : layers) {
    if (tensors.adds()) {
      lora.layers_.push_back(make_layer(file, config, name, tensors));
    } else {
      lora.unknown_.push_back(tensors.any_of({LoraRole::kAlpha, LoraRole::kScale}));
    }
  }
  return lora;
}

std::string LoraFile::component() const {
  const auto found = file_.metadata().find(formats::kLoraComponentKey);
  return found == file_.metadata().end() ? std::string() : found->second;
}

at::Tensor LoraFile::checked(const std::string& name, at::Tensor value) const {
  // A sum is finite only where all values are; the other way round it may overflow.
  if (std::isfinite(at::sum(value, at::kFloat).item<float>())) return value;
  if (at::isfinite(value).all().item<bool>()) return value;
  throw Error(ErrorCode::kDataLoss,
              in_file(path(), name) + ": holds values that are not finite as " +
                  c10::toString(value.scalar_type()),
              "the file is damaged, or its values are too large for --dtype", "LORA_VALUES");
}

at::Tensor LoraFile::read(const std::string& name, int64_t rows, int64_t columns,
                          at::ScalarType dtype) const {
  return checked(name, file_.read(name, dtype).reshape({rows, columns}));
}

// (u v) * (w x), element by element, is the product of all pairs of columns of u and w with all
// pairs of rows of v and x.
at::Tensor LoraFile::read_down(const LoraLayer& layer, at::ScalarType dtype) const {
  if (layer.down2.empty()) return read(layer.down, layer.rank, layer.in, dtype);
  const at::Tensor first = read(layer.down, layer.rank, layer.in, at::kFloat);
  const at::Tensor second = read(layer.down2, layer.rank, layer.in, at::kFloat);
  return checked(layer.down, (first.unsqueeze(1) * second.unsqueeze(0)).flatten(0, 1).to(dtype));
}

at::Tensor LoraFile::read_up(const LoraLayer& layer, at::ScalarType dtype) const {
  if (!layer.up_parts.empty()) return read_parts(layer).to(dtype);
  if (layer.up2.empty()) return read(layer.up, layer.out, layer.rank, dtype);
  const at::Tensor first = read(layer.up, layer.out, layer.rank, at::kFloat);
  const at::Tensor second = read(layer.up2, layer.out, layer.rank, at::kFloat);
  return checked(layer.up, (first.unsqueeze(2) * second.unsqueeze(1)).flatten(1, 2).to(dtype));
}

at::Tensor LoraFile::read_parts(const LoraLayer& layer) const {
  std::vector<at::Tensor> parts;
  for (const std::string& name : layer.up_parts) parts.push_back(read_as_is(name).flatten(1));
  return at::block_diag(parts);
}

at::Tensor LoraFile::read_as_is(const std::string& name) const {
  const at::ScalarType type = file_.index().find(name)->dtype;
  const size_t bytes = c10::elementSize(type);  // 8-bit values have no arithmetic
  return checked(name, file_.read(name, bytes == 2 || bytes == 4 ? type : at::kFloat));
}

Difference::Matrix LoraFile::read_matrix(const LoraLayer::Matrix& names) const {
  const auto read_flat = [&](const std::string& name) {
    const at::Tensor value = read_as_is(name);
    return value.reshape({value.size(0), -1});
  };
  if (!names.whole.empty()) return {read_flat(names.whole), {}};
  return {read_flat(names.left), read_flat(names.right)};
}

Difference LoraFile::read_difference(const LoraLayer& layer) const {
  Difference difference;
  difference.scale = layer.scale;
  difference.shape = layer.shape;
  switch (layer.form) {
    case LayerForm::kNone:
      break;
    case LayerForm::kLora:
      difference.first = read_matrix({"", layer.up, layer.down});
      if (!layer.up_parts.empty()) difference.first.left = read_parts(layer);
      break;
    case LayerForm::kLoha:
      difference.form = Difference::Form::kHadamard;
      difference.first = read_matrix({"", layer.up, layer.down});
      difference.second = read_matrix({"", layer.up2, layer.down2});
      break;
    case LayerForm::kLokr:
      difference.form = Difference::Form::kKronecker;
      difference.first = read_matrix(layer.kron1);
      difference.second = read_matrix(layer.kron2);
      break;
    case LayerForm::kDifference:
      difference.first.left = read_as_is(layer.diff);
      break;
  }
  if (!layer.magnitude.empty())
    difference.magnitude = read_as_is(layer.magnitude)
                               .reshape(layer.magnitude_axis == 0 ? std::vector<int64_t>{-1, 1}
                                                                  : std::vector<int64_t>{1, -1});
  return difference;
}

Difference LoraFile::read_bias(const LoraLayer& layer) const {
  Difference difference;
  difference.first.left = read_as_is(layer.bias);
  difference.scale = layer.bias_scale;
  difference.shape = difference.first.left.sizes().vec();
  return difference;
}

}  // namespace atelier::lora
