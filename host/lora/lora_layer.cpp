#include "host/lora/lora_layer.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"

namespace atelier::lora {

using files::Checkpoint;
using formats::LoraRole;
using formats::quote_and_escape;

std::string in_file(const std::string& path, const std::string& tensor) {
  return files::display_path(path) + ": tensor " + quote_and_escape(tensor);
}

const std::string& LoraLayer::any_tensor() const {
  for (const std::string* name : {&up, &kron1.whole, &kron1.left, &diff}) {
    if (!name->empty()) return *name;
  }
  return diff;
}

std::string LayerTensors::of(LoraRole role) const {
  const auto found = names_.find(role);
  return found != names_.end() ? found->second : std::string();
}

std::string LayerTensors::any_of(std::initializer_list<LoraRole> roles) const {
  for (const LoraRole role : roles) {
    if (std::string name = of(role); !name.empty()) return name;
  }
  return {};
}

bool LayerTensors::adds() const {
  return !up_parts_.empty() || std::ranges::any_of(names_, [](const auto& name) {
    return name.first != LoraRole::kAlpha && name.first != LoraRole::kScale;
  });
}

namespace {

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
  LayerMaker(const Checkpoint& file, const AdapterConfig& config) : file_(file), config_(config) {}

  LoraLayer make(const std::string& name, const LayerTensors& tensors) const {
    LoraLayer layer;
    layer.name = name;
    add_weight(layer, tensors);
    set_scale(layer, tensors);
    add_magnitude(layer, tensors);
    add_bias(layer, tensors);
    return layer;
  }

 private:
  void add_weight(LoraLayer& layer, const LayerTensors& tensors) const {
    using enum formats::LoraRole;
    std::string pair = tensors.any_of({kDown, kUp});
    if (pair.empty() && !tensors.up_parts().empty()) pair = tensors.up_parts().begin()->second;
    const std::string hada = tensors.any_of({kHada1Down, kHada1Up, kHada2Down, kHada2Up});
    const std::string kron =
        tensors.any_of({kKron1, kKron1Left, kKron1Right, kKron2, kKron2Left, kKron2Right});
    const std::string diff = tensors.of(kDiff);
    std::string found;
    for (const std::string& one : {pair, hada, kron, diff}) {
      if (one.empty()) continue;
      if (!found.empty())
        throw Error(ErrorCode::kUnsupported,
                    in_file(file_.name(), one) + ": " + quote_and_escape(found) +
                        " is another addition to the same layer",
                    "save each LoRA as a file of its own", "LORA_TWICE");
      found = one;
    }
    if (!pair.empty()) add_pair(layer, tensors, pair);
    if (!hada.empty()) add_hada(layer, tensors, hada);
    if (!kron.empty()) add_kron(layer, tensors, kron);
    if (!diff.empty()) add_difference(layer, diff);
  }

  void add_pair(LoraLayer& layer, const LayerTensors& tensors, const std::string& any) const {
    layer.form = LayerForm::kLora;
    layer.down = tensors.of(LoraRole::kDown);
    layer.up = tensors.of(LoraRole::kUp);
    if (!tensors.up_parts().empty()) return add_parts(layer, tensors);
    if (layer.down.empty() || layer.up.empty())
      throw incomplete(file_, any,
                       std::string("the layer's ") +
                           (layer.down.empty() ? "lora_A (lora_down)" : "lora_B (lora_up)") +
                           " is missing");
    set_shape_of_pair(layer);
  }

  void add_parts(LoraLayer& layer, const LayerTensors& tensors) const {
    const std::string& first = tensors.up_parts().begin()->second;
    if (!layer.up.empty())
      throw Error(ErrorCode::kUnsupported,
                  in_file(file_.name(), first) + ": " + quote_and_escape(layer.up) +
                      " is the same factor of the same layer",
                  "save each LoRA as a file of its own", "LORA_TWICE");
    const auto count = std::ssize(tensors.up_parts());
    if (layer.down.empty() || tensors.up_parts().rbegin()->first != count - 1)
      throw incomplete(file_, first,
                       layer.down.empty() ? "the layer's lora_down is missing"
                                          : "one of the layer's blocks of lora_up is missing");
    const auto [rank, in] = matrix_shape(file_, layer.down);
    const auto [out, part_rank] = matrix_shape(file_, first);
    for (const auto& [number, tensor] : tensors.up_parts()) {
      layer.up_parts.push_back(tensor);
      if (matrix_shape(file_, tensor) != std::pair(out, part_rank) || rank != count * part_rank)
        throw misshaped(file_, tensor,
                        "rank " + std::to_string(rank / count) + " and the rows of " +
                            quote_and_escape(first) + " expected",
                        "blocks on a diagonal have one shape");
    }
    layer.up = first;
    layer.rank = rank;
    layer.out = count * out;
    layer.in = in;
    layer.shape = {layer.out, layer.in};
  }

  void set_shape_of_pair(LoraLayer& layer) const {
    const auto [rank, in] = matrix_shape(file_, layer.down);
    const auto [out, up_rank] = matrix_shape(file_, layer.up);
    if (rank != up_rank)
      throw misshaped(
          file_, layer.up,
          "rank " + std::to_string(rank) + " expected, as " + quote_and_escape(layer.down) + " has",
          "the two factors of a layer have one rank");
    layer.rank = rank;
    layer.shape = {out, in};
    layer.out = out;
    layer.in = in;
  }

  void add_hada(LoraLayer& layer, const LayerTensors& tensors, const std::string& any) const {
    layer.form = LayerForm::kLoha;
    layer.down = tensors.of(LoraRole::kHada1Down);
    layer.up = tensors.of(LoraRole::kHada1Up);
    layer.down2 = tensors.of(LoraRole::kHada2Down);
    layer.up2 = tensors.of(LoraRole::kHada2Up);
    if (layer.down.empty() || layer.up.empty() || layer.down2.empty() || layer.up2.empty())
      throw incomplete(file_, any,
                       "of the layer's hada_w1_a, hada_w1_b, hada_w2_a and hada_w2_b not all are "
                       "there");
    set_shape_of_pair(layer);
    for (const auto& [first, second] :
         {std::pair(layer.down, layer.down2), {layer.up, layer.up2}}) {
      if (matrix_shape(file_, first) != matrix_shape(file_, second))
        throw Error(ErrorCode::kUnsupported,
                    in_file(file_.name(), second) + ": shape " +
                        c10::str(at::IntArrayRef(file_.index().find(second)->shape)) +
                        ", that of " + quote_and_escape(first) + " expected",
                    "the two pairs of a LoHa have one shape", "LORA_RANK");
    }
  }

  void add_kron(LoraLayer& layer, const LayerTensors& tensors, const std::string& any) const {
    using enum formats::LoraRole;
    layer.form = LayerForm::kLokr;
    layer.kron1 = {tensors.of(kKron1), tensors.of(kKron1Left), tensors.of(kKron1Right)};
    layer.kron2 = {tensors.of(kKron2), tensors.of(kKron2Left), tensors.of(kKron2Right)};
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
  void set_scale(LoraLayer& layer, const LayerTensors& tensors) const {
    if (layer.form == LayerForm::kNone || layer.form == LayerForm::kDifference) return;
    const char* key = layer.form == LayerForm::kLora ? "lora_alpha" : "alpha";
    std::optional<double> rank;
    if (layer.rank > 0) rank = static_cast<double>(layer.rank);
    bool divides_by_root = false;
    if (const std::string tensor = tensors.of(LoraRole::kScale); !tensor.empty()) {
      layer.scale = read_alpha(file_, tensor);
      if (rank) layer.alpha = layer.scale * *rank;
      return;
    }
    if (const std::string tensor = tensors.of(LoraRole::kAlpha); !tensor.empty()) {
      layer.alpha = read_alpha(file_, tensor);
    } else if (const auto given = config_.find(layer.name, key)) {
      layer.alpha = given->alpha;
      divides_by_root = given->divides_by_root;
      if (!rank && given->rank && *given->rank > 0) rank = given->rank;
    }
    if (layer.alpha && rank)
      layer.scale = *layer.alpha / (divides_by_root ? std::sqrt(*rank) : *rank);
  }

  void add_magnitude(LoraLayer& layer, const LayerTensors& tensors) const {
    layer.magnitude = tensors.of(LoraRole::kMagnitude);
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

  void add_bias(LoraLayer& layer, const LayerTensors& tensors) const {
    const std::string diff = tensors.of(LoraRole::kBiasDiff), up = tensors.of(LoraRole::kUpBias);
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
  const AdapterConfig& config_;
};

}  // namespace

LoraLayer make_layer(const Checkpoint& file, const AdapterConfig& config, const std::string& name,
                     const LayerTensors& tensors) {
  return LayerMaker(file, config).make(name, tensors);
}

}  // namespace atelier::lora
