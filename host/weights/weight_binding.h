// A family's weight table between a checkpoint's tensors and a component's weights, in both
// directions.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atelier/checkpoint.h"
#include "atelier/nn/module.h"
#include "atelier/weight_map.h"

#include "host/files/checkpoint.h"
#include "host/weights/storage.h"
#include "memory/residency.h"

namespace atelier::weights {

// A part of a weight and the part of a tensor that it is, along one axis.
struct WeightPiece {
  std::string tensor;  // published name, with prefix
  int axis = -1;       // -1: the whole of both
  int64_t tensor_start = 0, weight_start = 0, length = 0;
};

struct BoundWeight {
  std::string path;  // in the component
  Weight* weight = nullptr;
  std::vector<WeightPiece> pieces;
};

// What fits and what does not. Tensors and weights are listed by their published names where there
// is one.
struct WeightBinding {
  std::vector<BoundWeight> weights;
  std::vector<std::string> missing;     // weights that no tensor fills
  std::vector<std::string> unexpected;  // tensors that no row of the table names
  std::vector<std::string> misshaped;   // "name: [2, 3], expected [3, 3]"
  std::vector<std::string> unused;      // tensors that the table names as known and not used

  bool is_complete() const { return missing.empty() && unexpected.empty() && misshaped.empty(); }
  // Throws Error{kInvalidArgument} with everything that does not fit: up to 20 of each kind, then
  // how many more.
  void throw_unless_complete(const std::string& checkpoint_name,
                             const std::string& component) const;
};

// `module` outlives the binding.
WeightBinding bind_weights(const WeightMap& rules, const std::string& prefix,
                           const TensorIndex& index, nn::Module& module);

// How many tensors of `index` a row of the table names.
int64_t count_known_tensors(const WeightMap& rules, const std::string& prefix,
                            const TensorIndex& index);

// Where load_weights puts weights.
struct Landing {
  // Those that are not named go to the device. kDisk leaves a weight in the mapped file, without
  // bringing its pages into memory; one that cannot rest there goes to the host.
  std::map<const Weight*, memory::Place> places = {};
  // On the CPU, whether what goes to the device may stay in the mapped file.
  bool maps = true;
};

// Fills the weights. Floating ones arrive in `dtype`, or float32 where they keep that, on `device`,
// or where `landing` says. On the CPU whole tensors of that dtype are mapped and not copied (see
// mapped_file.h); all others are read in groups, so that beside the weights little memory is used.
// Scales of the checkpoint are applied. Weights of `plan` are stored in 8 bits and drawn in
// `dtype`. Throws Error{kNumerics} when one of these holds a value that is not finite.
void load_weights(const WeightBinding& binding, const files::Checkpoint& checkpoint,
                  at::ScalarType dtype, at::Device device,
                  const std::function<void(int64_t bytes_done)>& progress = {},
                  const StoragePlan& plan = {}, const Landing& landing = {});
// Whether a weight can stay in the mapped file: it is one tensor, or rows of one, as it is drawn.
bool rests_in_file(const BoundWeight& bound, const files::Checkpoint& checkpoint,
                   at::ScalarType dtype, const StoragePlan& plan = {});
// Bytes of files that load_weights reads.
int64_t bytes_to_read(const WeightBinding& binding, const files::Checkpoint& checkpoint);

// A published name and how its tensor is made of the weights.
struct PublishedTensor {
  std::string name;  // with prefix
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  int axis = -1;
  // Joined along `axis`; of each the part [start, start + length), -1 for the whole.
  struct Source {
    std::string path;
    Weight* weight;
    int64_t start, length;
  };
  std::vector<Source> sources;

  at::Tensor value() const;
};

// Reads the table backwards: the tensors of a checkpoint of this component, in its published
// spelling. Where a weight is joined from several tensors, `published` says how long each is, else
// the table; where that does not, they are equally long. Throws Error{kInternal} when a weight has
// no row, is not loaded, or cannot be cut.
std::vector<PublishedTensor> published_tensors(nn::Module& module, const WeightMap& rules,
                                               const std::string& prefix,
                                               const TensorIndex* published = nullptr);

// Names and shapes alone, without prefix: of weights that need not be loaded, as float32.
TensorIndex published_index(nn::Module& module, const WeightMap& rules);

}  // namespace atelier::weights
