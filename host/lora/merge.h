// LoRAs into one LoRA, or into the weights of a model.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/lora/layer_names.h"
#include "host/lora/lora_file.h"
#include "host/lora/lora_writer.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

struct MergeSource {
  LoraFile file;
  double strength = 1.0;
  std::string component = {};  // as in LoraRef
};

struct MergeReport {
  size_t layers = 0;
  int64_t most_rank = 0;
  // How much is lost by `rank`, beside the whole sum: both as the root of the sum of squares.
  double relative_error = 0.0;
};

// Writes the sum of strength times each LoRA as one LoRA: ranks stand beside each other, and what
// scales and strengths say is multiplied into `up` in float64. `rank` cuts layers that have more to
// it. Throws Error{kUnsupported} for layers that are no product of two factors,
// Error{kInvalidArgument} when shapes differ, nothing is left, sources are for different denoisers,
// or `output` is one of the sources, and what write_lora throws.
MergeReport merge_loras(std::span<const MergeSource> sources, const std::string& output,
                        Format format, std::optional<int64_t> rank, at::ScalarType dtype,
                        LayerNames& names);

// One component with LoRAs added, as a file that is written tensor by tensor.
struct MergedComponent {
  std::string component, path;
  size_t changed = 0;  // tensors
  // Layers and tensors of the LoRAs that are nothing in the model; of its first component only.
  std::vector<std::string> unmatched = {};
};
struct MergeProgress {
  std::string_view component;
  size_t done = 0, total = 0;  // tensors
};

// Writes each component that the LoRAs change with their names, shapes and dtypes as published:
// W + the sum of what is added, in float32, rounded once. Tensors that nothing is added to are
// copied. `output` is the file; where several components change, "_COMPONENT" is put before its
// extension, and none of them is there yet. In memory are the LoRAs and one weight. Throws
// Error{kInvalidArgument} when one is, Error{kUnsupported} when a changed
// tensor is stored in 8 bits, what Targets::match throws, and Error{kEnvironment} when a file
// cannot be written.
std::vector<MergedComponent> merge_into_model(
    std::span<const MergeSource> sources, model::LoadedModel& model, const std::string& output,
    const std::function<void(const MergeProgress&)>& progress = {});

}  // namespace atelier::lora
