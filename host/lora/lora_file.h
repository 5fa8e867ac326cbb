// A LoRA file: which layers it adds to, in any published spelling, and by how much.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/files/checkpoint.h"
#include "host/lora/difference.h"

namespace atelier::lora {

// What a tensor's name says: "transformer.a.b.lora_A.default.weight" is the kDown of
// "transformer.a.b".
enum class TensorRole {
  kDown,
  kUp,
  kDown2,  // of LoHa
  kUp2,
  kKron1,  // of LoKr: the left side, or its two factors
  kKron1Left,
  kKron1Right,
  kKron2,
  kKron2Left,
  kKron2Right,
  kDiff,       // of the weight itself
  kBiasDiff,   // of the bias
  kUpBias,     // of lora_B: of the bias, at the LoRA's scale
  kMagnitude,  // of DoRA
  kAlpha,
  kUnsupported,
  kUnknown
};
struct TensorName {
  std::string layer;  // as the file spells it, with its prefix
  TensorRole role = TensorRole::kUnknown;
  std::string kind = {};  // kUnsupported only: what it is, "OFT"
};
TensorName parse_tensor_name(std::string_view name);

// How the addition to a layer's weight is written.
enum class LayerForm {
  kNone,       // only the bias is added to
  kLora,       // up * down
  kLoha,       // up * down times up2 * down2, element by element
  kLokr,       // the Kronecker product of two matrices
  kDifference  // the values themselves
};

// The addition to one layer: `scale` times what `form` says, and to its bias.
struct LoraLayer {
  std::string name;  // as the file spells it, with its prefix
  LayerForm form = LayerForm::kNone;
  // Names of tensors; empty: not there.
  std::string down, up;    // kLora, kLoha: [rank, in] and [out, rank]
  std::string down2, up2;  // kLoha's second pair, of the same shapes
  struct Matrix {
    std::string whole, left, right;  // one, or the product of two
  };
  Matrix kron1, kron2;          // kLokr
  std::string diff;             // kDifference
  std::string magnitude;        // DoRA: the sum of weight and addition gets these lengths
  std::string bias;             // what is added to the bias
  std::vector<int64_t> shape;   // of the weight that is added to; empty for kNone
  int64_t in = 0, out = 0;      // columns and rows of that weight
  int64_t rank = 0;             // 0 where nothing is factored
  std::optional<double> alpha;  // of the file; none: the rank
  double scale = 1.0;  // alpha / rank, or alpha / sqrt(rank) where the metadata says rsLoRA
  double bias_scale = 1.0;
  int magnitude_axis = 0;  // 0: a length for each row; 1: for each column

  // Whether it is one product of two factors, so that it can be part of the layer's own.
  bool is_product() const {
    return (form == LayerForm::kLora || form == LayerForm::kLoha) && magnitude.empty();
  }
  // A tensor of the addition to the weight; empty for kNone.
  const std::string& any_tensor() const;
};

// Headers, checked whole; tensors are read when they are asked for. Immutable.
class LoraFile {
 public:
  // `path` is a file, or a folder as peft and diffusers save it. The alphas are those of the
  // tensors, else of the metadata `lora_adapter_metadata`, else of the adapter_config.json beside
  // an adapter_model.safetensors.
  // Throws Error naming file and tensor: what Checkpoint::open throws, kInvalidArgument for a file
  // that is no LoRA or whose tensors contradict each other, and kUnsupported, naming the kind, for
  // additions of another form (OFT, convolutions with a middle factor).
  static LoraFile open(const std::string& path);

  const std::string& path() const { return file_.name(); }
  const std::vector<LoraLayer>& layers() const { return layers_; }  // in the order of their names
  // Tensors whose names say nothing: they belong to no layer.
  const std::vector<std::string>& unknown() const { return unknown_; }
  const files::Checkpoint& tensors() const { return file_; }

  // The two factors of one layer that is_product(), in `dtype`, on the CPU: [rank, in] and
  // [out, rank]. LoHa's addition is such a product too, of rank * rank, made in float32. Throws
  // Error{kDataLoss} when the file has changed, or holds NaN or infinity in this dtype.
  at::Tensor read_down(const LoraLayer& layer, at::ScalarType dtype) const;
  at::Tensor read_up(const LoraLayer& layer, at::ScalarType dtype) const;

  // What any layer adds to its weight, and to its bias, on the CPU, in the dtypes of the file.
  // Throws Error{kDataLoss} as above.
  Difference read_difference(const LoraLayer& layer) const;
  Difference read_bias(const LoraLayer& layer) const;

 private:
  explicit LoraFile(files::Checkpoint file) : file_(std::move(file)) {}
  at::Tensor read(const std::string& name, int64_t rows, int64_t columns,
                  at::ScalarType dtype) const;
  at::Tensor checked(const std::string& name, at::Tensor value) const;
  at::Tensor read_as_is(const std::string& name) const;
  Difference::Matrix read_matrix(const LoraLayer::Matrix& names) const;

  files::Checkpoint file_;
  std::vector<LoraLayer> layers_;
  std::vector<std::string> unknown_;
};

}  // namespace atelier::lora
