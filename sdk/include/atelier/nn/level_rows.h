// Products whose rows depend on the noise level alone, so that what is computed ahead has the bits
// of what is computed in each step.
#pragma once

#include "atelier/nn/layers.h"

namespace atelier::nn {

// A matrix product's bits depend on how many rows it has. With one number of rows always, a level's
// row is the same whatever stands beside it: rows [B, K], padded and cut into groups, are
// [groups, n, K]. Outside training.
ATELIER_API at::Tensor level_groups(const at::Tensor& rows);

// `layer` of rows [B, K], or of the first B of rows in groups: [B, N].
ATELIER_API at::Tensor of_levels(const Linear& layer, const at::Tensor& rows, int64_t B);

// of_levels() of rows in groups for all `levels`, with the layer's weight drawn once: [levels, N],
// contiguous.
ATELIER_API at::Tensor of_all_levels(const Linear& layer, const at::Tensor& groups, int64_t levels);

}  // namespace atelier::nn
