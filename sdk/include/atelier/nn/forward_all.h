// Layers that read the same rows, as q, k and v do.
#pragma once

#include <initializer_list>
#include <vector>

#include "atelier/nn/layers.h"

namespace atelier::nn {

// What Linear::forward() of each of `layers` gives; their adapters share products: see
// ops::linears().
ATELIER_API std::vector<at::Tensor> forward_all(std::initializer_list<const Linear*> layers,
                                                const at::Tensor& x);

}  // namespace atelier::nn
