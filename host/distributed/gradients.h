// Gradients of all ranks, summed.
#pragma once

#include <span>

#include <ATen/core/Tensor.h>

#include "host/distributed/group.h"

namespace atelier::distributed {

// The gradient of each leaf becomes the sum over the ranks, with the same bits on all of them. One
// that is not defined on a rank counts as zero; one that is defined nowhere stays undefined. They
// are sent in buckets through host memory, of which a few are under way at a time. Returns the sum
// of `loss`, a float32 scalar.
at::Tensor sum_gradients(Group& group, std::span<const at::Tensor> leaves, const at::Tensor& loss);

}  // namespace atelier::distributed
