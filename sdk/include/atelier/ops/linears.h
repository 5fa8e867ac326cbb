// Several layers of one input, whose adapters share products.
#pragma once

#include <span>
#include <vector>

#include "atelier/ops/linear.h"

namespace atelier::ops {

// A layer, as linear() takes it.
struct LinearTerms {
  WeightPtr weight;
  WeightPtr bias;  // may be null
  std::span<const Adapter> adapters;
};

// linear() of each of `layers`. Where any of them has an adapter, all matrices a without a dropout
// are one product with x, forward and backward, and what the layers give back to x is added up
// inside their products. Without adapters each layer is alone, to the bit.
ATELIER_API std::vector<at::Tensor> linears(const at::Tensor& x,
                                            std::span<const LinearTerms> layers);

}  // namespace atelier::ops
