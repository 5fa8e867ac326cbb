// What the tests of a device share: which device it is, and operators compared with float64 on the
// CPU.
#pragma once

#include <functional>
#include <string>

#include "atelier/segments.h"

#include "support/tensors.h"

namespace atelier::test {

// The device of --device; "cuda" without the flag.
at::Device device();
// The sizes of published models, with --shapes model; else small ones.
bool has_model_shapes();

// What an expression gave, and the tensors whose gradients are asked for.
struct Traced {
  Tensors outputs, inputs;
};

// An expression of operators, and float64 tensors on the CPU that it is given, rounded to a dtype,
// on some device. It takes gradients of what it is given and of weights that it makes of that.
struct Operator {
  std::string name;
  Tensors inputs;
  std::function<Traced(const Tensors& inputs)> run;
  // How much larger errors may be than those of one product or norm.
  double slack = 1.0;
  // Whether gradients have the same bits twice without LibTorch's deterministic algorithms.
  bool repeats = true;
};

struct Comparison {
  double value_error = 0.0, gradient_error = 0.0;  // the largest, of each tensor's own scale
  bool values_repeat = true, gradients_repeat = true;
};

// Runs the operator twice there in `dtype`, and once in float64 on the CPU with the same inputs.
Comparison compare(const Operator& op, at::ScalarType dtype, at::Device where);

// The largest error of values that one product or norm in `dtype` may have.
double bound(at::ScalarType dtype);

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
