// LoRA files from one spelling to another.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "host/lora/layer_names.h"
#include "host/lora/lora_file.h"
#include "host/lora/lora_writer.h"

namespace atelier::lora {

// One layer of a file as write_lora takes it: factors as the file has them, and the tensors of
// other forms under the names that LyCORIS gives them.
LayerWeights read_layer(const LoraFile& file, const LoraLayer& layer, const LayerNames& names);

// What the file says of itself, for a file made of it: all metadata but hashes.
Description read_description(const LoraFile& file, const LayerNames& names);

// The dtype of most factors of a file; 8-bit ones count as bfloat16.
at::ScalarType factor_dtype(const LoraFile& file);

// Writes the layers of `file` to `output`; without `dtype` in the file's own. With a model, layers
// are cut and joined as the format's readers know them: see respell(). Throws what
// LayerNames::check, respell and write_lora throw, and Error{kInvalidArgument} when `output` is the
// file itself.
void convert(const LoraFile& file, const std::string& output, Format format,
             std::optional<at::ScalarType> dtype, const LayerNames& names);

// Throws Error{kInvalidArgument} when `output` is one of the file's own.
void check_output(const LoraFile& file, const std::string& output);

}  // namespace atelier::lora
