// A family's weight table read backwards: the published tensors that weights make.
#pragma once

#include <string>
#include <vector>

#include "atelier/checkpoint.h"
#include "atelier/nn/module.h"
#include "atelier/weight_map.h"

namespace atelier::weights {

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
