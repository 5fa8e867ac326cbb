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
#include "host/files/file_reader.h"
#include "host/report/problems.h"

namespace atelier::lora {

namespace fs = std::filesystem;

namespace {

using files::Checkpoint;
using files::display_path;
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
    {".lokr_w1", TensorRole::kKron1},
    {".lokr_w1_a", TensorRole::kKron1Left},
    {".lokr_w1_b", TensorRole::kKron1Right},
    {".lokr_w2", TensorRole::kKron2},
    {".lokr_w2_a", TensorRole::kKron2Left},
    {".lokr_w2_b", TensorRole::kKron2Right},
    {".dora_scale", TensorRole::kMagnitude},
    {".lora_magnitude_vector", TensorRole::kMagnitude},
};
// What a name ends with.
constexpr Marker kEnds[] = {
    {".alpha", TensorRole::kAlpha},     {".diff", TensorRole::kDiff},
    {".diff_b", TensorRole::kBiasDiff}, {".w_norm", TensorRole::kDiff},
    {".b_norm", TensorRole::kBiasDiff},
};

struct OtherForm {
  std::string_view text, kind;
};
// Additions that are not supported; the text may be followed by a dot and more.
constexpr OtherForm kOtherForms[] = {
    {".hada_t1", "LoHa of a convolution"},
    {".hada_t2", "LoHa of a convolution"},
    {".lokr_t1", "LoKr of a convolution"},
    {".lokr_t2", "LoKr of a convolution"},
    {".lora_mid", "LoCon with a middle factor"},
    {".oft_diag", "OFT"},
    {".oft_blocks", "OFT"},
    {".diff_m", "a difference of the modulation (.diff_m)"},
    {".set_weight", "a replaced weight (.set_weight)"},
    {".reshape_weight", "a reshaped weight (.reshape_weight)"},
};

// "" | ".NAME", before ".weight" or the end: what may follow a factor's marker.
bool is_adapter_name(std::string_view text) {
  return text.empty() ||
         (text.size() > 1 && text.front() == '.' && text.find('.', 1) == std::string_view::npos);
}

std::string in_file(const std::string& path, const std::string& tensor) {
  return display_path(path) + ": tensor " + quote_and_escape(tensor);
}

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

// Rank and alpha as peft writes them: for all layers, and for some by their names.
class AdapterConfig {
 public:
  AdapterConfig() = default;
  // `values`: of one adapter_config.json, or of several components with names before the keys,
  // "transformer.lora_alpha".
  explicit AdapterConfig(json values) : values_(std::move(values)) {}

  // The factor before an addition, where the configuration gives an alpha.
  struct Alpha {
    double alpha;
    std::optional<double> rank;
    bool divides_by_root;
  };
  std::optional<Alpha> find(const std::string& layer, const std::string& alpha_key) const {
    for (const auto& [key, value] : values_.items()) {
      if (key != alpha_key && !key.ends_with("." + alpha_key)) continue;
      const std::string component = key.substr(0, key.size() - alpha_key.size());
      if (!layer.starts_with(component) || !value.is_number()) continue;
      const std::string name = layer.substr(component.size());
      const auto root = values_.find(component + "use_rslora");
      return Alpha{*number_for(component, alpha_key, "alpha_pattern", name),
                   number_for(component, "r", "rank_pattern", name),
                   root != values_.end() && root->is_boolean() && root->get<bool>()};
    }
    return std::nullopt;
  }

 private:
  // What `patterns_key` says of the layer `name` of a component, else the value of `key`.
  std::optional<double> number_for(const std::string& component, const std::string& key,
                                   const char* patterns_key, const std::string& name) const {
    if (const auto patterns = values_.find(component + patterns_key);
        patterns != values_.end() && patterns->is_object()) {
      for (const auto& [pattern, own] : patterns->items()) {
        if (own.is_number() && names_layer(pattern, name)) return own.get<double>();
      }
    }
    const auto found = values_.find(component + key);
    if (found == values_.end() || !found->is_number()) return std::nullopt;
    return found->get<double>();
  }

  // peft's patterns are the end of a name, at a dot; "^" anchors them at its start.
  static bool names_layer(const std::string& pattern, const std::string& layer) {
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
    return AdapterConfig(parse_config(files::read_text_file(beside.string(), 16'000'000),
                                      display_path(beside.string())));
  }
  return {};
}

// The names of one layer's tensors.
class Parts {
 public:
  std::string& operator[](TensorRole role) { return names_[role]; }
  // Empty when there is no such tensor.
  std::string of(TensorRole role) const {
    const auto found = names_.find(role);
    return found != names_.end() ? found->second : std::string();
  }
  // The first that is there; empty for none.
  std::string any_of(std::initializer_list<TensorRole> roles) const {
    for (const TensorRole role : roles) {
      if (std::string name = of(role); !name.empty()) return name;
    }
    return {};
  }
  bool adds() const { return names_.size() > (of(TensorRole::kAlpha).empty() ? 0u : 1u); }

 private:
  std::map<TensorRole, std::string> names_;
};

void check_floating(const Checkpoint& file, const std::string& tensor) {
  if (file.has_scales(tensor))
    throw Error(ErrorCode::kUnsupported,
                in_file(file.name(), tensor) + ": 8 bits with scales cannot be added",
                "save the LoRA in 16 bits", "LORA_DTYPE");
  const at::ScalarType dtype = file.index().find(tensor)->dtype;
  if (c10::isFloatingType(dtype)) return;
  throw Error(
      ErrorCode::kUnsupported,
      in_file(file.name(), tensor) + ": " + c10::toString(dtype) + " values cannot be added",
      "save the LoRA in a floating dtype", "LORA_DTYPE");
}

// [rows, columns] of a factor; a convolution of width 1 counts as a matrix.
std::pair<int64_t, int64_t> matrix_shape(const Checkpoint& file, const std::string& tensor) {
  const TensorMeta& meta = *file.index().find(tensor);
  const bool is_matrix = meta.shape.size() == 2 ||
                         (meta.shape.size() == 4 && meta.shape[2] == 1 && meta.shape[3] == 1);
  if (!is_matrix || meta.shape[0] < 1 || meta.shape[1] < 1)
    throw Error(ErrorCode::kUnsupported,
                in_file(file.name(), tensor) + ": shape " + c10::str(at::IntArrayRef(meta.shape)) +
                    " is no matrix",
                "additions to linear layers are supported", "LORA_SHAPE");
  check_floating(file, tensor);
  return {meta.shape[0], meta.shape[1]};
}

double read_alpha(const Checkpoint& file, const std::string& tensor) {
  const TensorMeta& meta = *file.index().find(tensor);
  if (c10::multiply_integers(meta.shape) != 1)
    throw Error(ErrorCode::kInvalidArgument,
                in_file(file.name(), tensor) + ": shape " + c10::str(at::IntArrayRef(meta.shape)) +
                    ", one number expected",
                "save the LoRA again", "LORA_SHAPE");
  const double alpha = file.read(tensor).to(at::kDouble).item<double>();
  if (!std::isfinite(alpha))
    throw Error(ErrorCode::kDataLoss, in_file(file.name(), tensor) + ": is not finite",
                "the file is damaged: fetch it again", "LORA_VALUES");
  return alpha;
}

Error misshaped(const Checkpoint& file, const std::string& tensor, const std::string& expected,
                const char* hint) {
  return Error(ErrorCode::kInvalidArgument,
               in_file(file.name(), tensor) + ": shape " +
                   c10::str(at::IntArrayRef(file.index().find(tensor)->shape)) + ", " + expected,
               hint, "LORA_RANK");
}

Error incomplete(const Checkpoint& file, const std::string& tensor, const std::string& what) {
  return Error(ErrorCode::kInvalidArgument, in_file(file.name(), tensor) + ": " + what,
               "the file is not whole: fetch or save it again", "LORA_PAIR");
}

// Makes layers of the names of their tensors.
class LayerMaker {
 public:
  explicit LayerMaker(const Checkpoint& file) : file_(file), config_(adapter_config(file)) {}

  LoraLayer make(const std::string& name, const Parts& parts) const {
    LoraLayer layer;
    layer.name = name;
    add_weight(layer, parts);
    set_scale(layer, parts);
    add_magnitude(layer, parts);
    add_bias(layer, parts);
    return layer;
  }

 private:
  void add_weight(LoraLayer& layer, const Parts& parts) const {
    using enum TensorRole;
    const std::string pair = parts.any_of({kDown, kUp, kDown2, kUp2});
    const std::string kron =
        parts.any_of({kKron1, kKron1Left, kKron1Right, kKron2, kKron2Left, kKron2Right});
    const std::string diff = parts.of(kDiff);
    for (const auto& [first, second] :
         {std::pair(pair, kron), std::pair(pair, diff), std::pair(kron, diff)}) {
      if (!first.empty() && !second.empty())
        throw Error(ErrorCode::kUnsupported,
                    in_file(file_.name(), second) + ": " + quote_and_escape(first) +
                        " is another addition to the same layer",
                    "save each LoRA as a file of its own", "LORA_TWICE");
    }
    if (!pair.empty()) add_pair(layer, parts, pair);
    if (!kron.empty()) add_kron(layer, parts, kron);
    if (!diff.empty()) add_difference(layer, diff);
  }

  void add_pair(LoraLayer& layer, const Parts& parts, const std::string& any) const {
    layer.down = parts.of(TensorRole::kDown);
    layer.up = parts.of(TensorRole::kUp);
    layer.down2 = parts.of(TensorRole::kDown2);
    layer.up2 = parts.of(TensorRole::kUp2);
    const bool is_loha = !layer.down2.empty() || !layer.up2.empty() ||
                         layer.down.ends_with(".hada_w1_b") || layer.up.ends_with(".hada_w1_a");
    if (is_loha &&
        (layer.down.empty() || layer.up.empty() || layer.down2.empty() || layer.up2.empty()))
      throw incomplete(file_, any,
                       "of the layer's hada_w1_a, hada_w1_b, hada_w2_a and hada_w2_b not all are "
                       "there");
    if (layer.down.empty() || layer.up.empty())
      throw incomplete(file_, any,
                       std::string("the layer's ") +
                           (layer.down.empty() ? "lora_A (lora_down)" : "lora_B (lora_up)") +
                           " is missing");
    layer.form = is_loha ? LayerForm::kLoha : LayerForm::kLora;
    const auto [rank, in] = matrix_shape(file_, layer.down);
    const auto [out, up_rank] = matrix_shape(file_, layer.up);
    if (rank != up_rank)
      throw misshaped(
          file_, layer.up,
          "rank " + std::to_string(rank) + " expected, as " + quote_and_escape(layer.down) + " has",
          "the two factors of a layer have one rank");
    for (const auto& [first, second] :
         {std::pair(layer.down, layer.down2), {layer.up, layer.up2}}) {
      if (is_loha && matrix_shape(file_, first) != matrix_shape(file_, second))
        throw Error(ErrorCode::kUnsupported,
                    in_file(file_.name(), second) + ": shape " +
                        c10::str(at::IntArrayRef(file_.index().find(second)->shape)) +
                        ", that of " + quote_and_escape(first) + " expected",
                    "the two pairs of a LoHa have one shape", "LORA_RANK");
    }
    layer.rank = rank;
    layer.shape = {out, in};
    layer.out = out;
    layer.in = in;
  }

  void add_kron(LoraLayer& layer, const Parts& parts, const std::string& any) const {
    using enum TensorRole;
    layer.form = LayerForm::kLokr;
    layer.kron1 = {parts.of(kKron1), parts.of(kKron1Left), parts.of(kKron1Right)};
    layer.kron2 = {parts.of(kKron2), parts.of(kKron2Left), parts.of(kKron2Right)};
    layer.out = layer.in = 1;
    for (const auto& [names, what] :
         {std::pair(layer.kron1, "lokr_w1"), std::pair(layer.kron2, "lokr_w2")}) {
      const bool is_factored = !names.left.empty() && !names.right.empty();
      if (names.whole.empty() ? !is_factored : !names.left.empty() || !names.right.empty())
        throw incomplete(file_, any,
                         "the layer has not just one of " + std::string(what) + ", and " + what +
                             "_a with " + what + "_b");
      const auto [rows, columns] = matrix_shape(file_, is_factored ? names.left : names.whole);
      layer.out *= rows;
      if (!is_factored) {
        layer.in *= columns;
        continue;
      }
      const auto [rank, in] = matrix_shape(file_, names.right);
      if (rank != columns)
        throw misshaped(file_, names.right, std::to_string(columns) + " rows expected",
                        "the two factors of a matrix have one rank");
      layer.in *= in;
      layer.rank = rank;
    }
    layer.shape = {layer.out, layer.in};
  }

  void add_difference(LoraLayer& layer, const std::string& tensor) const {
    check_floating(file_, tensor);
    layer.form = LayerForm::kDifference;
    layer.diff = tensor;
    layer.shape = file_.index().find(tensor)->shape;
    layer.out = layer.shape.empty() ? 1 : layer.shape[0];
    layer.in = c10::multiply_integers(layer.shape) / std::max<int64_t>(layer.out, 1);
  }

  // Alpha over rank. A LoKr of two whole matrices has no rank, and alpha means nothing there, but
  // for peft, which divides by the rank that it was asked for.
  void set_scale(LoraLayer& layer, const Parts& parts) const {
    if (layer.form == LayerForm::kNone || layer.form == LayerForm::kDifference) return;
    const char* key = layer.form == LayerForm::kLora ? "lora_alpha" : "alpha";
    std::optional<double> rank;
    if (layer.rank > 0) rank = static_cast<double>(layer.rank);
    bool divides_by_root = false;
    if (const std::string tensor = parts.of(TensorRole::kAlpha); !tensor.empty()) {
      layer.alpha = read_alpha(file_, tensor);
    } else if (const auto given = config_.find(layer.name, key)) {
      layer.alpha = given->alpha;
      divides_by_root = given->divides_by_root;
      if (!rank && given->rank && *given->rank > 0) rank = given->rank;
    }
    if (layer.alpha && rank)
      layer.scale = *layer.alpha / (divides_by_root ? std::sqrt(*rank) : *rank);
  }

  void add_magnitude(LoraLayer& layer, const Parts& parts) const {
    layer.magnitude = parts.of(TensorRole::kMagnitude);
    if (layer.magnitude.empty()) return;
    if (layer.form == LayerForm::kNone || layer.shape.size() != 2)
      throw incomplete(file_, layer.magnitude, "the pair that it belongs to is missing");
    check_floating(file_, layer.magnitude);
    const std::vector<int64_t>& shape = file_.index().find(layer.magnitude)->shape;
    const bool is_row = shape.size() > 1 && shape[0] == 1 && shape[1] == layer.in;
    const bool is_column = !shape.empty() && shape[0] == layer.out;
    if (c10::multiply_integers(shape) != (is_column ? layer.out : layer.in) ||
        (!is_row && !is_column))
      throw misshaped(
          file_, layer.magnitude,
          "[" + std::to_string(layer.out) + "] or [1, " + std::to_string(layer.in) + "] expected",
          "DoRA has one length for each row, or for each column");
    layer.magnitude_axis = is_column ? 0 : 1;
  }

  void add_bias(LoraLayer& layer, const Parts& parts) const {
    const std::string diff = parts.of(TensorRole::kBiasDiff), up = parts.of(TensorRole::kUpBias);
    if (!diff.empty() && !up.empty())
      throw Error(ErrorCode::kUnsupported,
                  in_file(file_.name(), up) + ": " + quote_and_escape(diff) +
                      " is another addition to the same bias",
                  "save each LoRA as a file of its own", "LORA_TWICE");
    layer.bias = diff.empty() ? up : diff;
    if (layer.bias.empty()) return;
    check_floating(file_, layer.bias);
    const std::vector<int64_t>& shape = file_.index().find(layer.bias)->shape;
    if (shape.size() != 1 || (layer.shape.size() == 2 && shape[0] != layer.out))
      throw misshaped(file_, layer.bias,
                      "[" +
                          (layer.shape.size() == 2 ? std::to_string(layer.out) : std::string("n")) +
                          "] expected",
                      "a bias has one value for each output");
    if (!up.empty()) layer.bias_scale = layer.scale;
  }

  const Checkpoint& file_;
  AdapterConfig config_;
};

}  // namespace

const std::string& LoraLayer::any_tensor() const {
  for (const std::string* name : {&up, &kron1.whole, &kron1.left, &diff}) {
    if (!name->empty()) return *name;
  }
  return diff;
}

TensorName parse_tensor_name(std::string_view name) {
  for (const Marker& marker : kEnds) {
    if (name.size() > marker.text.size() && name.ends_with(marker.text))
      return {std::string(name.substr(0, name.size() - marker.text.size())), marker.role};
  }
  for (const Marker& marker : kFactors) {
    const size_t at = name.rfind(marker.text);
    if (at == std::string_view::npos || at == 0) continue;
    std::string_view rest = name.substr(at + marker.text.size());
    const std::string layer(name.substr(0, at));
    if (rest.ends_with(".bias")) {
      if (!is_adapter_name(rest.substr(0, rest.size() - 5))) continue;
      if (marker.role == TensorRole::kUp) return {layer, TensorRole::kUpBias};
      return {layer, TensorRole::kUnsupported, "a bias within a LoRA"};
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
  std::map<std::string, Parts> layers;  // by name
  for (const auto& [tensor, meta] : file.index().tensors()) {
    TensorName name = parse_tensor_name(tensor);
    if (name.role == TensorRole::kUnknown) {
      lora.unknown_.push_back(tensor);
      continue;
    }
    if (name.role == TensorRole::kUnsupported)
      throw Error(ErrorCode::kUnsupported,
                  in_file(path, tensor) + ": " + name.kind + " is not supported",
                  "LoRA, DoRA, LoHa, LoKr and whole differences are", "LORA_KIND");
    std::string& slot = layers[name.layer][name.role];
    if (!slot.empty())
      throw Error(ErrorCode::kUnsupported,
                  in_file(path, tensor) + ": " + quote_and_escape(slot) +
                      " is the same factor of the same layer",
                  "save each LoRA as a file of its own", "LORA_TWICE");
    slot = tensor;
  }
  if (std::none_of(layers.begin(), layers.end(),
                   [](const auto& item) { return item.second.adds(); }))
    throw Error(ErrorCode::kInvalidArgument,
                display_path(path) + ": is no LoRA (" +
                    std::to_string(file.index().tensors().size()) +
                    " tensors, and no pair of lora_A and lora_B, or lora_down and lora_up)",
                "atelier inspect says what it is", "LORA_NONE");
  const LayerMaker maker(file);
  for (const auto& [name, parts] : layers) {
    if (parts.adds()) {
      lora.layers_.push_back(maker.make(name, parts));
    } else {
      lora.unknown_.push_back(parts.of(TensorRole::kAlpha));
    }
  }
  return lora;
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
  if (layer.up2.empty()) return read(layer.up, layer.out, layer.rank, dtype);
  const at::Tensor first = read(layer.up, layer.out, layer.rank, at::kFloat);
  const at::Tensor second = read(layer.up2, layer.out, layer.rank, at::kFloat);
  return checked(layer.up, (first.unsqueeze(2) * second.unsqueeze(1)).flatten(1, 2).to(dtype));
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
