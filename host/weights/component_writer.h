// Saves components: files that can take the place of those that the components came from.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atelier/nn/module.h"
#include "atelier/weight_map.h"

#include "formats/safetensors.h"
#include "host/files/checkpoint.h"

namespace atelier::weights {

// Writes `entries` as write_safetensors does, and what else makes the file stand in for `source`:
//
// - the tensors of `source` that are none of the entries, copied one at a time. Those of 8 bits
//   with scales become bfloat16, with the scales applied;
// - the config that `source` was read with, in the metadata (kConfigKey), and as config.json beside
//   the file where the folder holds nothing else: programs that load folders look for it there.
//
// Throws as write_safetensors, and Error{kEnvironment} when the source cannot be read any more.
void write_component(const std::string& path, const files::Checkpoint& source,
                     std::vector<formats::TensorEntry> entries,
                     std::map<std::string, std::string> metadata,
                     const std::function<at::Tensor(const std::string& name)>& tensor);

// Writes the weights of a component in their published spelling, floating ones in `dtype` where it
// is given. `source` is the checkpoint that it was loaded from; null: there is none, and the file
// holds the weights and `metadata` alone. `comes_from_all`: weights that are drawn come from
// several processes, which all call this; `path` is empty on those that do not write, and where
// writing fails, the rest is drawn before that is thrown. Throws as published_tensors and
// write_component.
void save_component(nn::Module& module, const WeightMap& rules, const std::string& prefix,
                    const std::string& path, const std::map<std::string, std::string>& metadata,
                    const files::Checkpoint* source = nullptr,
                    std::optional<at::ScalarType> dtype = {}, bool comes_from_all = false);

}  // namespace atelier::weights
