// What a LoRA file adds to one layer, put together from the names of its tensors.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/lora_names.h"
#include "host/files/checkpoint.h"
#include "host/lora/adapter_config.h"

namespace atelier::lora {

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
  std::string down, up;  // kLora, kLoha: [rank, in] and [out, rank]
  // kLora: where it is cut, the blocks on the diagonal of [out, rank], all of one shape; `up` is
  // then the first of them.
  std::vector<std::string> up_parts;
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
  std::optional<double> alpha;  // of the file, or what its scale means; none: the rank
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

// The names of one layer's tensors, by what they are of it.
class LayerTensors {
 public:
  // Empty when there is no such tensor.
  std::string& operator[](formats::LoraRole role) { return names_[role]; }
  // The tensor of a part, see LoraTensorName.
  std::string& up_part(int64_t number) { return up_parts_[number]; }
  const std::map<int64_t, std::string>& up_parts() const { return up_parts_; }
  std::string of(formats::LoraRole role) const;
  // The first that is there; empty for none.
  std::string any_of(std::initializer_list<formats::LoraRole> roles) const;
  // Whether there is more than an alpha or a scale.
  bool adds() const;

 private:
  std::map<formats::LoraRole, std::string> names_;
  std::map<int64_t, std::string> up_parts_;
};

// Throws Error naming the file and the tensor: kInvalidArgument where tensors are missing or
// contradict each other, kUnsupported for shapes and dtypes that cannot be added.
LoraLayer make_layer(const files::Checkpoint& file, const AdapterConfig& config,
                     const std::string& name, const LayerTensors& tensors);

// "FILE: tensor NAME", for messages.
std::string in_file(const std::string& path, const std::string& tensor);

}  // namespace atelier::lora
