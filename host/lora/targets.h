// The layers of a model under every name that LoRA files give them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/nn/layers.h"

#include "host/lora/lora_file.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

// A part of a named tensor, and the part of a layer's weight or bias that it is.
struct TargetPiece {
  Weight* weight = nullptr;
  nn::Linear* linear = nullptr;  // whose matrix the weight is; null for all other weights
  std::string path;              // of the layer in its component
  int axis = -1;  // -1: the whole of both; 0: rows, of the output; 1: columns, of the input
  int64_t name_start = 0, layer_start = 0, length = 0;
};

// One name: a layer, a part of one, or several that are published as one tensor.
struct Target {
  std::string component;
  std::vector<int64_t> shape;  // of the named tensor
  int64_t out = 0, in = 0;     // its rows and columns
  std::vector<TargetPiece> pieces;
};

// The tensors of a component under the names that one of the family's spellings has for them,
// without prefix: "blocks.0.up.weight". `spelling`: of ModelFamily::spellings(). Weights need not
// be loaded.
using NamedTargets = std::map<std::string, Target, std::less<>>;
NamedTargets spelled_targets(model::LoadedModel& model, const model::LoadedPart& part,
                             const std::string& spelling);

// What a file's layers are in a model.
struct Match {
  struct Pair {
    size_t layer;  // of LoraFile::layers()
    const Target* target;
  };
  std::vector<Pair> pairs;             // additions to weights, in the order of the file's layers
  std::vector<Pair> biases;            // additions to biases
  std::vector<std::string> unmatched;  // layers and tensors of the file that are nothing here
};

// All names of a model's layers: their own paths, and those of every spelling that the family
// knows, whichever the checkpoints have that the model was opened with. Immutable.
class Targets {
 public:
  // `model` outlives the targets. Its weights need not be loaded.
  explicit Targets(model::LoadedModel& model);
  // Matches, and its own tables, point into it.
  Targets(const Targets&) = delete;
  Targets& operator=(const Targets&) = delete;

  // The linear layer that a file calls `name`; null when there is none. Understood are the prefixes
  // "transformer.", "diffusion_model.", "base_model.model." and their like, names whose dots became
  // underscores behind "lora_unet_", "lora_te_" or "lycoris_", and bare names.
  const Target* find(std::string_view name) const;
  // The weight, and the bias, of any layer: also of norms, tables and convolutions.
  const Target* find_weight(std::string_view name) const { return find(name, ".weight"); }
  const Target* find_bias(std::string_view name) const { return find(name, ".bias"); }

  // Throws Error{kInvalidArgument} naming the file and what does not fit: when no layer is found,
  // when shapes differ, when a rank is larger than any layer of the component, when one layer is
  // named twice, and when a bias is added to that is not there; and Error{kUnsupported} for a DoRA
  // whose lengths run over several layers.
  Match match(const LoraFile& file) const;

 private:
  struct Component {
    Component() = default;
    Component(Component&&) = default;  // unlike a copy it leaves `by_flat_name` valid
    Component& operator=(Component&&) = default;

    std::string name;
    bool is_denoiser = false, is_text_encoder = false;
    std::vector<std::string> prefixes;  // that LoRA files put before its names
    NamedTargets by_name;
    std::map<std::string, const Target*, std::less<>> by_flat_name;  // dots are underscores
    int64_t widest = 0;  // longest side of its linear layers
  };
  static const Target* find_in(const Component& component, std::string_view name,
                               std::string_view ending);
  const Target* find(std::string_view name, std::string_view ending) const;
  void check_rank(const std::string& path, const LoraLayer& layer, const std::string& name) const;
  static Component table_of(model::LoadedModel& model, const model::LoadedPart& part);

  std::string family_;
  std::vector<Component> components_;  // the denoiser first
};

}  // namespace atelier::lora
