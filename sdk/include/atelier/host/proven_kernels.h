// Which kernels of our own run by default, on which GPUs: a table that can be read without them.
#pragma once

#include <span>
#include <string_view>

#include "atelier/export.h"

namespace atelier::ops {

// A recorded run on GPUs of such capabilities (90 is 9.0) in which all kernels of an operator, those
// of its backward pass among them, passed `tools/gpu check`, and `tools/gpu kernels` found them
// faster than the composed form.
struct ProvenKernels {
  std::string_view op;
  int first_capability, last_capability;
};
ATELIER_API std::span<const ProvenKernels> proven_kernels();

// Of the operator with this name.
ATELIER_API bool are_proven(std::string_view op, int capability);

}  // namespace atelier::ops
