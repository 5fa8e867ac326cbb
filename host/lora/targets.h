// The layers of a model under every name that LoRA files give them.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/nn/layers.h"

#include "host/lora/lora_file.h"
#include "host/model/model_loader.h"

namespace atelier::lora {

// A part of a named tensor, and the part of a layer's weight or bias that it is.
struct TargetSlice {
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
  std::vector<TargetSlice> slices;
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

// In the place of a component's name: every denoiser that has a layer of the name.
inline constexpr std::string_view kEveryDenoiser = "all";

// All names of a model's layers: their own paths, and those of every spelling that the family
// knows, whichever the checkpoints have that the model was opened with. Immutable.
//
// Where several denoisers have layers of one name, `component` says which is meant; names that tell
// their component ("text_encoder.X", "lora_te_X") stand for that one all the same.
class Targets {
 public:
  // `model` outlives the targets. Its weights need not be loaded.
  explicit Targets(model::LoadedModel& model);
  // Matches, and its own tables, point into it.
  Targets(const Targets&) = delete;
  Targets& operator=(const Targets&) = delete;

  // The weight of the layer that a file calls `name`; null when there is none. Understood are all
  // prefixes of formats::without_lora_prefix() and bare names. Without `component`: of the first
  // denoiser that has it.
  const Target* find(std::string_view name, std::string_view component = {}) const;

  // The component and the path that `name` stands for; nullopt where it is no layer.
  struct LayerName {
    std::string component;
    std::string path;  // in the component, or in any published spelling
  };
  std::optional<LayerName> find_name(std::string_view name, std::string_view component = {}) const;

  // What the layers of `file` are. `component`: a component, kEveryDenoiser, or empty for what the
  // file's metadata says, or else its name (see ModelFamily::assign).
  // Throws Error{kInvalidArgument} naming the file and what does not fit: when no layer is found,
  // when several denoisers have them and nothing says which is meant, when shapes differ, when a
  // rank is larger than any layer of the component, when one layer is named twice, and when a bias
  // is added to that is not there; Error{kNotFound} for a component that the model has not; and
  // Error{kUnsupported} for a DoRA whose lengths run over several layers.
  Match match(const LoraFile& file, std::string_view component = {}) const;

 private:
  struct Component {
    Component() = default;
    Component(Component&&) = default;  // unlike a copy it leaves `by_flat_name` valid
    Component& operator=(Component&&) = default;

    std::string name;
    std::string saved_name;  // see model::saved_name()
    bool is_denoiser = false;
    std::string beside;                  // of a control: its denoiser
    std::optional<size_t> text_encoder;  // which of the family's
    std::string file_prefix;             // that the family's files put before its names; or empty
    NamedTargets by_name;
    std::map<std::string, NamedTargets::const_iterator, std::less<>> by_flat_name;
    int64_t widest = 0;  // longest side of its linear layers
  };
  // A name with the component that has it.
  struct Found {
    const Component* component;
    NamedTargets::const_iterator target;
  };
  class Matching;

  static Component table_of(model::LoadedModel& model, const model::LoadedPart& part);
  static std::optional<Found> find_in(const Component& component, std::string_view name,
                                      std::string_view ending);
  static std::vector<Found> first_of_each(std::span<const Found> all, std::string_view component);
  // What `name` stands for: of several denoisers all, unless `component` names one; so it is of
  // controls beside several.
  std::vector<Found> find_all(std::string_view name, std::string_view ending,
                              std::string_view component) const;
  const Component* find_component(std::string_view name) const;
  // Throws Error where a file says that it is for another denoiser than that which the file it was
  // trained on is, by its name. Files of one expert alone were once saved as the other's.
  void check_base(const LoraFile& file, const Component& said) const;
  // The component that `file` is for, as match() takes it; empty where nothing says it.
  std::string component_of(const LoraFile& file, std::string_view asked) const;
  // The one of several denoisers whose checkpoint a file of that name would be; empty where the
  // names do not say it.
  std::string denoiser_of(const std::string& path) const;

  const ModelFamily& family_;
  std::vector<Component> components_;  // the denoisers first
  std::vector<Detection> denoisers_;
};

}  // namespace atelier::lora
