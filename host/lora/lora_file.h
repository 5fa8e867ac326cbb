// A LoRA file: which layers it adds to, in any published spelling, and by how much.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/checkpoint/checkpoint.h"

namespace atelier::lora {

// What a tensor's name says: "transformer.a.b.lora_A.default.weight" is the kDown of
// "transformer.a.b".
enum class TensorRole { kDown, kUp, kDown2, kUp2, kAlpha, kUnsupported, kUnknown };
struct TensorName {
  std::string layer;  // as the file spells it, with its prefix
  TensorRole role = TensorRole::kUnknown;
  std::string kind = {};  // kUnsupported only: what it is, "DoRA"
};
TensorName parse_tensor_name(std::string_view name);

// The addition to one layer: scale * up * down, and for LoHa each element of it times that of
// up2 * down2.
struct LoraLayer {
  std::string name;        // as the file spells it, with its prefix
  std::string down, up;    // names of tensors: [rank, in] and [out, rank]
  std::string down2, up2;  // LoHa's second pair, of the same shapes; otherwise empty
  int64_t in = 0, out = 0, rank = 0;
  std::optional<double> alpha;  // of the file; none: the rank
  double scale = 1.0;  // alpha / rank, or alpha / sqrt(rank) where the metadata says rsLoRA
};

// Headers, checked whole; tensors are read when they are asked for. Immutable.
class LoraFile {
 public:
  // `path` is a file, or a folder as peft and diffusers save it. The alphas are those of the
  // tensors, else of the metadata `lora_adapter_metadata`, else of the adapter_config.json beside
  // an adapter_model.safetensors.
  // Throws Error naming file and tensor: what Checkpoint::open throws, kInvalidArgument for a file
  // that is no LoRA or whose tensors contradict each other, and kUnsupported, naming the kind, for
  // additions of another form (DoRA, LoKr, whole differences).
  static LoraFile open(const std::string& path);

  const std::string& path() const { return file_.name(); }
  const std::vector<LoraLayer>& layers() const { return layers_; }  // in the order of their names
  // Tensors whose names say nothing: they belong to no layer.
  const std::vector<std::string>& unknown() const { return unknown_; }
  const checkpoint::Checkpoint& tensors() const { return file_; }

  // The two factors of one layer in `dtype`, on the CPU: [rank, in] and [out, rank]. LoHa's
  // addition is such a product too, of rank * rank, made in float32. Throws Error{kDataLoss} when
  // the file has changed, or holds NaN or infinity in this dtype.
  at::Tensor read_down(const LoraLayer& layer, at::ScalarType dtype) const;
  at::Tensor read_up(const LoraLayer& layer, at::ScalarType dtype) const;

 private:
  explicit LoraFile(checkpoint::Checkpoint file) : file_(std::move(file)) {}
  at::Tensor read(const std::string& name, int64_t rows, int64_t columns,
                  at::ScalarType dtype) const;
  at::Tensor checked(const std::string& name, at::Tensor value) const;

  checkpoint::Checkpoint file_;
  std::vector<LoraLayer> layers_;
  std::vector<std::string> unknown_;
};

}  // namespace atelier::lora
