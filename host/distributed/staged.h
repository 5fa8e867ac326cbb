// Exchanges of tensors wherever they lie, which wait for their result.
#pragma once

#include "host/distributed/group.h"

namespace atelier::distributed {

// What a group does not send from where it lies goes through host memory. All ranks give tensors of
// one shape and dtype.

// `part` of every rank: [size(), ...].
at::Tensor gathered(Group& group, const at::Tensor& part);

// parts: [size(), ...], part r for rank r. Returns [size(), ...]: what every rank has for this one.
at::Tensor exchanged(Group& group, const at::Tensor& parts);

}  // namespace atelier::distributed
