// What the tests of a device share: which device it is, and operators compared with float64 on the
// CPU.
#pragma once

#include <functional>
#include <string>

#include "atelier/segments.h"

#include "host/tune/operator_check.h"
#include "support/tensors.h"

namespace atelier::test {

// The device of --device; "cuda" without the flag.
at::Device device();
// The sizes of published models, with --shapes model; else small ones.
bool has_model_shapes();

using tune::bound;
using tune::Comparison;
using tune::Operator;
using tune::Traced;

// As tune::compare(), there, with the kernels of --kernels.
Comparison compare(const Operator& op, at::ScalarType dtype, at::Device where);

// Checks values, gradients and bits in float32, bfloat16 and float16.
void check(const Operator& op);

// Normal float64 values on the CPU.
at::Tensor noise(at::IntArrayRef sizes);
// A weight with these values; where it is trained its leaf is added to `leaves`.
WeightPtr weight_of(const at::Tensor& value, Tensors* leaves = nullptr);

// While it lives, LibTorch uses deterministic algorithms alone.
class Deterministic {
 public:
  Deterministic();
  ~Deterministic();
};

}  // namespace atelier::test
