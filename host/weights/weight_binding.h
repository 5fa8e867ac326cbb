// A family's weight table between a checkpoint's tensors and a component's weights.
#pragma once

#include <string>
#include <vector>

#include "atelier/checkpoint.h"
#include "atelier/nn/module.h"
#include "atelier/weight_map.h"

namespace atelier::weights {

// A part of a weight and the part of a tensor that it is, along one axis.
struct WeightSlice {
  std::string tensor;  // published name, with prefix
  int axis = -1;       // -1: the whole of both
  int64_t tensor_start = 0, weight_start = 0, length = 0;
};

struct BoundWeight {
  std::string path;  // in the component
  Weight* weight = nullptr;
  std::vector<WeightSlice> slices;
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

}  // namespace atelier::weights
