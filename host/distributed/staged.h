// Exchanges of tensors wherever they lie.
#pragma once

#include <functional>
#include <string>

#include "host/distributed/group.h"

namespace atelier::distributed {

// What a group does not send from where it lies goes through host memory. All ranks give tensors of
// one shape and dtype.

// `part` of every rank: [size(), ...].
at::Tensor gathered(Group& group, const at::Tensor& part);

// parts: [size(), ...], part r for rank r. Returns [size(), ...]: what every rank has for this one.
at::Tensor exchanged(Group& group, const at::Tensor& parts);

// Begins to send `part` to the next rank. What is returned waits for that of the rank before, and
// gives it; `part` may not be written before.
std::function<at::Tensor()> passed_on(Group& group, const at::Tensor& part);

// Begins to gather `part` of every rank, uint8, into `whole`. What is returned waits for that;
// where it `sends` from nowhere but host memory, it copies what came there to `whole` then.
std::function<void()> gathered_into(Group& group, const at::Tensor& whole, const at::Tensor& part,
                                    const std::string& what, bool sends);

}  // namespace atelier::distributed
