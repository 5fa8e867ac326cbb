// Writes LoRA files in the spellings that other programs read.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/model_family.h"

namespace atelier::lora {

// Names of one layer X with prefix P of the family ("transformer."):
//   diffusers  P X.lora_A.weight, P X.lora_B.weight; alpha in the metadata lora_adapter_metadata
//   comfy      diffusion_model.X.lora_A.weight, .lora_B.weight, .alpha
//   kohya      lora_unet_X_with_underscores.lora_down.weight, .lora_up.weight, .alpha
//   diffsynth  X.lora_A.default.weight, X.lora_B.default.weight; alpha is the rank (B is scaled)
enum class Format { kDiffusers, kComfy, kKohya, kDiffsynth };

// Throws Error{kInvalidArgument} naming the formats there are.
Format parse_format(std::string_view name);

// The addition to one linear layer: alpha / rank * up * down, or alpha / sqrt(rank) with rsLoRA.
struct LayerWeights {
  std::string component;  // "dit"
  std::string path;       // of the layer in its component
  at::Tensor down;        // [rank, in]
  at::Tensor up;          // [out, rank]
  double alpha = 0.0;
  bool use_rslora = false;
};

// What a file says of itself beside its tensors; written as ss_*, modelspec.* and, for diffusers
// and peft, lora_adapter_metadata.
struct Description {
  std::string base_model;    // published name or file of what it was trained on
  std::string architecture;  // family and variant: "qwen_image"
  std::vector<std::string> target_modules;
  std::string title;
  int64_t step = 0, epoch = 0;
  std::map<std::string, std::string> more = {};  // as they stand
};

// Writes `layers` in `dtype`, then reads the file back and compares every addition. `targets`: of
// each component that has layers. Throws Error{kEnvironment} when it cannot be written, and
// Error{kDataLoss} when what is read back differs; the file is then removed.
void write_lora(const std::string& path, Format format, std::span<const LayerWeights> layers,
                const std::map<std::string, LoraTargets>& targets, at::ScalarType dtype,
                const Description& description);

}  // namespace atelier::lora
