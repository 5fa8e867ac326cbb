// Tensors of a checkpoint that are stored as codes: those of GGUF files, and several tensors that
// together stand for one, as bitsandbytes and ComfyUI write them.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "atelier/checkpoint.h"

#include "formats/gguf.h"
#include "memory/packed.h"

namespace atelier::files {

// What a packed tensor is made of.
struct PackedTensor {
  memory::Packing packing = memory::Packing::kNf4;
  std::vector<int64_t> shape = {};
  // Tensors as they are in the file, bytes where the format knows no dtype, in the order of
  // memory::Packed::parts without those that are the same in every file.
  struct Part {
    std::string name;
    TensorMeta meta;
  };
  std::vector<Part> parts = {};
  int64_t block = 64;  // see memory::Packed
  float offset = 0;    // what is added to scales that are codes

  uint64_t bytes() const;
};
using PackedTensors = std::map<std::string, PackedTensor, std::less<>>;  // by name

// The key of `__metadata__` under which ComfyUI may say how layers are stored: no more true of a
// file in which their values were written.
inline constexpr const char* kQuantizationKey = "_quantization_metadata";

// The packing of a type of GGUF; nullopt for one that is no codes.
std::optional<memory::Packing> packing_of(formats::GgufType type);

// Reads a part as it is in the file.
using ReadPart = std::function<at::Tensor(const PackedTensor::Part& part)>;

// Takes out of `tensors` what describes packed ones and gives these the shape that they stand for.
// `metadata`: of the files. Markers of tensors in float8_e4m3fn and float8_e5m2, whose scales are
// beside them, are taken out as well.
//
// Throws Error{kUnsupported} for a kind that is not read, PACKED_KIND, and Error{kDataLoss} for
// tensors that do not fit together, PACKED_FORM.
PackedTensors take_packed(TensorIndex::Tensors& tensors,
                          const std::map<std::string, std::string>& metadata, const ReadPart& read);

// On the CPU; where nothing is read, on the meta device.
memory::Packed read_packed(const PackedTensor& tensor, const ReadPart& read);
memory::Packed outline_packed(const PackedTensor& tensor);

}  // namespace atelier::files
