#include "host/lora/lora_file.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "host/checkpoint/file_reader.h"
#include "host/report/problems.h"

namespace atelier::lora {

namespace fs = std::filesystem;

namespace {

using checkpoint::Checkpoint;
using checkpoint::display_path;
using formats::quote_and_escape;
using nlohmann::json;

struct Marker {
  std::string_view text;
  TensorRole role;
};
// What stands between a layer's name and ".weight", with an adapter's name between: ".default".
constexpr Marker kFactors[] = {
    {".lora_linear_layer.down", TensorRole::kDown},
    {".lora_linear_layer.up", TensorRole::kUp},
    {"_lora.down", TensorRole::kDown},
    {"_lora.up", TensorRole::kUp},
    {".lora.down", TensorRole::kDown},
    {".lora.up", TensorRole::kUp},
    {".lora_down", TensorRole::kDown},
    {".lora_up", TensorRole::kUp},
    {".lora_A", TensorRole::kDown},
    {".lora_B", TensorRole::kUp},
    {".hada_w1_b", TensorRole::kDown},
    {".hada_w1_a", TensorRole::kUp},
    {".hada_w2_b", TensorRole::kDown2},
    {".hada_w2_a", TensorRole::kUp2},
};

struct OtherForm {
  std::string_view text, kind;
};
// Additions that are no product of two factors; the text may be followed by a dot and more.
constexpr OtherForm kOtherForms[] = {
    {".dora_scale", "DoRA"},
    {".lora_magnitude_vector", "DoRA"},
    {".hada_t1", "LoHa of a convolution"},
    {".hada_t2", "LoHa of a convolution"},
    {".lokr_w1", "LoKr"},
    {".lokr_w1_a", "LoKr"},
    {".lokr_w1_b", "LoKr"},
    {".lokr_w2", "LoKr"},
    {".lokr_w2_a", "LoKr"},
    {".lokr_w2_b", "LoKr"},
    {".lokr_t2", "LoKr"},
    {".lora_mid", "LoCon with a middle factor"},
    {".oft_diag", "OFT"},
    {".oft_blocks", "OFT"},
    {".diff", "a whole difference (.diff)"},
    {".diff_b", "a difference of the bias (.diff_b)"},
    {".diff_m", "a difference of the modulation (.diff_m)"},
    {".set_weight", "a replaced weight (.set_weight)"},
    {".reshape_weight", "a reshaped weight (.reshape_weight)"},
    {".w_norm", "a difference of a norm (.w_norm)"},
    {".b_norm", "a difference of a norm (.b_norm)"},
};

// "" | ".NAME", before ".weight" or the end: what may follow a factor's marker.
bool is_adapter_name(std::string_view text) {
  return text.empty() ||
         (text.size() > 1 && text.front() == '.' && text.find('.', 1) == std::string_view::npos);
}

std::string in_file(const std::string& path, const std::string& tensor) {
  return display_path(path) + ": tensor " + quote_and_escape(tensor);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

// The file that stands for `path`.
std::string find_file(const std::string& path) {
  std::error_code failure;
  if (!fs::is_directory(path, failure)) return path;
  std::vector<std::string> others;
  for (const char* name : {"pytorch_lora_weights.safetensors", "adapter_model.safetensors"}) {
    const std::string file = (fs::path(path) / name).string();
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

// Rank and alpha as peft writes them: for all layers, and for some by their names.
class AdapterConfig {
 public:
  AdapterConfig() = default;
  // `values`: of one adapter_config.json, or of several components with names before the keys,
  // "transformer.lora_alpha".
  explicit AdapterConfig(json values) : values_(std::move(values)) {}

  // The factor before up * down, where the configuration gives an alpha.
  struct Alpha {
    double alpha;
    bool divides_by_root;
  };
  std::optional<Alpha> find(const std::string& layer, const std::string& alpha_key) const {
    for (const auto& [key, value] : values_.items()) {
      if (key != alpha_key && !key.ends_with("." + alpha_key)) continue;
      const std::string component = key.substr(0, key.size() - alpha_key.size());
      if (!layer.starts_with(component) || !value.is_number()) continue;
      double alpha = value.get<double>();
      const std::string name = layer.substr(component.size());
      if (const auto patterns = values_.find(component + "alpha_pattern");
          patterns != values_.end() && patterns->is_object()) {
        for (const auto& [pattern, own] : patterns->items()) {
          if (own.is_number() && names_layer(pattern, name)) {
            alpha = own.get<double>();
            break;
          }
        }
      }
      const auto root = values_.find(component + "use_rslora");
      return Alpha{alpha, root != values_.end() && root->is_boolean() && root->get<bool>()};
    }
    return std::nullopt;
  }

 private:
  // peft's patterns are the end of a name, at a dot; "^" anchors them at its start.
  static bool names_layer(std::string pattern, const std::string& layer) {
    if (pattern.starts_with("^")) return layer == pattern.substr(1);
    return layer == pattern || layer.ends_with("." + pattern);
  }

  json values_ = json::object();
};

json parse_config(const std::string& text, const std::string& where) {
  try {
    json values = formats::parse_json(text);
    if (values.is_object()) return values;
  } catch (const formats::ParseError& error) {
    throw Error(ErrorCode::kDataLoss, where + ": " + error.what(), error.hint, error.tag);
  }
  throw Error(ErrorCode::kDataLoss, where + ": is no JSON object", "save the LoRA again",
              "LORA_METADATA");
}

AdapterConfig adapter_config(const Checkpoint& file) {
  const auto found = file.metadata().find("lora_adapter_metadata");
  if (found != file.metadata().end()) {
    return AdapterConfig(parse_config(
        found->second, display_path(file.name()) + ": metadata lora_adapter_metadata"));
  }
  const fs::path path(file.files().front());
  const fs::path beside = path.parent_path() / "adapter_config.json";
  std::error_code failure;
  if (path.filename() == "adapter_model.safetensors" && fs::is_regular_file(beside, failure)) {
    return AdapterConfig(parse_config(checkpoint::read_text_file(beside.string(), 16'000'000),
                                      display_path(beside.string())));
  }
  return {};
}

// The names of one layer's tensors.
struct Parts {
  std::string down, up, down2, up2, alpha;

  std::string& of(TensorRole role) {
    if (role == TensorRole::kDown) return down;
    if (role == TensorRole::kUp) return up;
    if (role == TensorRole::kDown2) return down2;
    return role == TensorRole::kUp2 ? up2 : alpha;
  }
  bool has_factors() const {
    return !down.empty() || !up.empty() || !down2.empty() || !up2.empty();
  }
  bool is_loha() const {
    return !down2.empty() || !up2.empty() || down.ends_with(".hada_w1_b") ||
           up.ends_with(".hada_w1_a");
  }
  // One of the factors that are there.
  const std::string& any() const {
    return !down.empty() ? down : !up.empty() ? up : !down2.empty() ? down2 : up2;
  }
};

// [rows, columns] of a factor; a convolution of width 1 counts as a matrix.
std::pair<int64_t, int64_t> matrix_shape(const Checkpoint& file, const std::string& tensor) {
  const TensorMeta& meta = *file.index().find(tensor);
  const bool is_matrix = meta.shape.size() == 2 ||
                         (meta.shape.size() == 4 && meta.shape[2] == 1 && meta.shape[3] == 1);
  if (!is_matrix || meta.shape[0] < 1 || meta.shape[1] < 1)
    throw Error(
        ErrorCode::kUnsupported,
        in_file(file.name(), tensor) + ": shape " + shape_text(meta.shape) + " is no matrix",
        "additions to linear layers are supported", "LORA_SHAPE");
  if (!c10::isFloatingType(meta.dtype))
    throw Error(
        ErrorCode::kUnsupported,
        in_file(file.name(), tensor) + ": " + c10::toString(meta.dtype) + " values cannot be added",
        "save the LoRA in a floating dtype", "LORA_DTYPE");
  return {meta.shape[0], meta.shape[1]};
}

double read_alpha(const Checkpoint& file, const std::string& tensor) {
  const TensorMeta& meta = *file.index().find(tensor);
  if (c10::multiply_integers(meta.shape) != 1)
    throw Error(ErrorCode::kInvalidArgument,
                in_file(file.name(), tensor) + ": shape " + shape_text(meta.shape) +
                    ", one number expected",
                "save the LoRA again", "LORA_SHAPE");
  const double alpha = file.read(tensor).to(at::kDouble).item<double>();
  if (!std::isfinite(alpha))
    throw Error(ErrorCode::kDataLoss, in_file(file.name(), tensor) + ": is not finite",
                "the file is damaged: fetch it again", "LORA_VALUES");
  return alpha;
}

}  // namespace

TensorName parse_tensor_name(std::string_view name) {
  if (name.ends_with(".alpha"))
    return {std::string(name.substr(0, name.size() - 6)), TensorRole::kAlpha};
  for (const Marker& marker : kFactors) {
    const size_t at = name.rfind(marker.text);
    if (at == std::string_view::npos || at == 0) continue;
    std::string_view rest = name.substr(at + marker.text.size());
    const std::string layer(name.substr(0, at));
    if (rest.ends_with(".bias")) {
      if (is_adapter_name(rest.substr(0, rest.size() - 5)))
        return {layer, TensorRole::kUnsupported, "a LoRA with biases"};
      continue;
    }
    if (rest.ends_with(".weight")) rest.remove_suffix(7);
    if (is_adapter_name(rest)) return {layer, marker.role};
  }
  for (const OtherForm& form : kOtherForms) {
    const size_t at = name.rfind(form.text);
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view rest = name.substr(at + form.text.size());
    if (rest.empty() || rest.front() == '.')
      return {std::string(name.substr(0, at)), TensorRole::kUnsupported, std::string(form.kind)};
  }
  return {std::string(name)};
}

LoraFile LoraFile::open(const std::string& path) {
  const std::string chosen = find_file(path);
  LoraFile lora(Checkpoint::open(chosen, {chosen}));
  const Checkpoint& file = lora.file_;
  std::map<std::string, Parts> parts;  // by layer
  for (const auto& [tensor, meta] : file.index().tensors()) {
    TensorName name = parse_tensor_name(tensor);
    if (name.role == TensorRole::kUnknown) {
      lora.unknown_.push_back(tensor);
      continue;
    }
    if (name.role == TensorRole::kUnsupported)
      throw Error(
          ErrorCode::kUnsupported, in_file(path, tensor) + ": " + name.kind + " is not supported",
          "use a plain LoRA: pairs of lora_A and lora_B, or lora_down and lora_up", "LORA_KIND");
    std::string& slot = parts[name.layer].of(name.role);
    if (!slot.empty())
      throw Error(ErrorCode::kUnsupported,
                  in_file(path, tensor) + ": " + quote_and_escape(slot) +
                      " is the same factor of the same layer",
                  "save each LoRA as a file of its own", "LORA_TWICE");
    slot = tensor;
  }
  const bool has_pairs = std::any_of(parts.begin(), parts.end(),
                                     [](const auto& item) { return item.second.has_factors(); });
  if (!has_pairs)
    throw Error(ErrorCode::kInvalidArgument,
                display_path(path) + ": is no LoRA (" +
                    std::to_string(file.index().tensors().size()) +
                    " tensors, and no pair of lora_A and lora_B, or lora_down and lora_up)",
                "atelier inspect says what it is", "LORA_NONE");
  const AdapterConfig config = adapter_config(file);
  for (const auto& [name, of] : parts) {
    if (!of.has_factors()) {
      lora.unknown_.push_back(of.alpha);
      continue;
    }
    const bool is_loha = of.is_loha();
    if (is_loha && (of.down.empty() || of.up.empty() || of.down2.empty() || of.up2.empty()))
      throw Error(ErrorCode::kInvalidArgument,
                  in_file(path, of.any()) +
                      ": of the layer's hada_w1_a, hada_w1_b, hada_w2_a and " +
                      "hada_w2_b not all are there",
                  "the file is not whole: fetch or save it again", "LORA_PAIR");
    if (of.down.empty() || of.up.empty())
      throw Error(ErrorCode::kInvalidArgument,
                  in_file(path, of.down.empty() ? of.up : of.down) + ": the layer's " +
                      (of.down.empty() ? "lora_A (lora_down)" : "lora_B (lora_up)") + " is missing",
                  "the file is not whole: fetch or save it again", "LORA_PAIR");
    LoraLayer layer;
    layer.name = name;
    layer.down = of.down;
    layer.up = of.up;
    layer.down2 = of.down2;
    layer.up2 = of.up2;
    const auto [rank, in] = matrix_shape(file, of.down);
    const auto [out, up_rank] = matrix_shape(file, of.up);
    if (rank != up_rank)
      throw Error(ErrorCode::kInvalidArgument,
                  in_file(path, of.up) + ": shape " + shape_text(file.index().find(of.up)->shape) +
                      ", rank " + std::to_string(rank) + " expected, as " +
                      quote_and_escape(of.down) + " has",
                  "the two factors of a layer have one rank", "LORA_RANK");
    for (const auto& [first, second] : {std::pair(of.down, of.down2), {of.up, of.up2}}) {
      if (is_loha && matrix_shape(file, first) != matrix_shape(file, second))
        throw Error(ErrorCode::kUnsupported,
                    in_file(path, second) + ": shape " +
                        shape_text(file.index().find(second)->shape) + ", that of " +
                        quote_and_escape(first) + " expected",
                    "the two pairs of a LoHa have one shape", "LORA_RANK");
    }
    layer.rank = rank;
    layer.in = in;
    layer.out = out;
    double divisor = static_cast<double>(rank);
    if (!of.alpha.empty()) {
      layer.alpha = read_alpha(file, of.alpha);
    } else if (const auto given = config.find(name, is_loha ? "alpha" : "lora_alpha")) {
      layer.alpha = given->alpha;
      if (given->divides_by_root) divisor = std::sqrt(divisor);
    }
    layer.scale = layer.alpha ? *layer.alpha / divisor : 1.0;
    lora.layers_.push_back(std::move(layer));
  }
  return lora;
}

at::Tensor LoraFile::checked(const std::string& name, at::Tensor value) const {
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
  if (layer.up2.empty()) return read(layer.up, layer.out, layer.rank, dtype);
  const at::Tensor first = read(layer.up, layer.out, layer.rank, at::kFloat);
  const at::Tensor second = read(layer.up2, layer.out, layer.rank, at::kFloat);
  return checked(layer.up, (first.unsqueeze(2) * second.unsqueeze(1)).flatten(1, 2).to(dtype));
}

}  // namespace atelier::lora
