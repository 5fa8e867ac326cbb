// A LoRA file: which layers it adds to, in any published spelling, and by how much.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/files/checkpoint.h"
#include "host/lora/difference.h"
#include "host/lora/lora_layer.h"

namespace atelier::lora {

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
  // The component that its layers are of where their names do not tell, as its metadata says it;
  // empty where that says nothing.
  std::string component() const;

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
  at::Tensor read_parts(const LoraLayer& layer) const;
  at::Tensor read_as_is(const std::string& name) const;
  Difference::Matrix read_matrix(const LoraLayer::Matrix& names) const;

  files::Checkpoint file_;
  std::vector<LoraLayer> layers_;
  std::vector<std::string> unknown_;
};

}  // namespace atelier::lora
