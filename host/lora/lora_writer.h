// Writes LoRA files in the spellings that other programs read.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/conditioning.h"
#include "atelier/model_family.h"

#include "formats/lora_names.h"

namespace atelier::lora {

using Format = formats::LoraFormat;

// Throws Error{kInvalidArgument} naming the formats there are.
Format parse_format(std::string_view name);

// The formats' names, for a flag.
std::vector<std::string> format_names();

// The addition to one linear layer: alpha / rank * up * down, or alpha / sqrt(rank) with rsLoRA.
struct LayerWeights {
  std::string component;  // "dit"
  std::string path;       // of the layer in its component
  at::Tensor down;        // [rank, in]
  at::Tensor up;          // [out, rank]
  double alpha = 0.0;
  bool use_rslora = false;
  // Tensors of another form, by what follows the layer's name: {"dora_scale": …} beside the
  // factors; {"hada_w1_a": …} or {"lokr_w1": …, "alpha": …} where `down` and `up` are undefined.
  // They are written as they are; comfy and kohya have names for them, and diffusers for DoRA with
  // a length for each row.
  NamedTensors others = {};

  // Whether it is two factors, and lengths [out, 1] of the rows that their sum with the weight has.
  bool is_dora_of_rows() const;
};

// What a file says of itself beside its tensors; written as ss_*, modelspec.* and, for diffusers
// and peft, lora_adapter_metadata.
struct Description {
  std::string base_model = {};    // published name or file of what it was trained on
  std::string architecture = {};  // family and variant
  std::vector<std::string> target_modules = {};
  std::string title = {};
  std::string component = {};  // that all layers are of; empty where files need not say it
  int64_t step = 0, epoch = 0;
  // Copied as they are: they replace what the fields above would write, but not rank, alpha and
  // targets of the tensors.
  std::map<std::string, std::string> more = {};
};

// Writes `layers` in `dtype`, then reads the file back and compares every addition. Beside the
// layers one tensor is in memory. `targets`: of each component that has layers.
//
// Factors are cast to `dtype` and otherwise written as they are; in diffsynth, `up` times the scale
// is made in float64 and rounded once. rsLoRA is alpha * sqrt(rank) where a file can say alpha
// only, rounded to float32 in comfy and kohya.
//
// Throws Error{kInvalidArgument} when there is no layer, when a layer's factors do not belong
// together and when two layers have one name; Error{kUnsupported} when the format has no name for
// one; Error{kNumerics} for values that are not finite in `dtype`; Error{kEnvironment} when the
// file cannot be written, and Error{kDataLoss} when what is read back differs: it is then removed.
void write_lora(const std::string& path, Format format, std::span<const LayerWeights> layers,
                const std::map<std::string, LoraTargets>& targets, at::ScalarType dtype,
                const Description& description);

}  // namespace atelier::lora
