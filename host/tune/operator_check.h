// Operators on a device beside the same in float64 on the CPU: values, gradients, and bits that
// repeat.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/ops/pointwise.h"

namespace atelier::tune {

using Tensors = std::vector<at::Tensor>;

// What an expression gave, and the tensors whose gradients are asked for: none, where it has none.
struct Traced {
  Tensors outputs, inputs;
};
// Gradients of the inputs, where `grads` are those of the outputs.
Tensors gradients(const Traced& traced, const Tensors& grads);

// An expression of operators, and tensors that it is given: float64 on the CPU, which are rounded
// to a dtype, on some device. It takes gradients of what it is given and of weights that it makes
// of that.
struct Operator {
  std::string name;
  Tensors inputs;
  std::function<Traced(const Tensors& inputs)> run;
  // How much larger errors may be than those of one product or norm.
  double slack = 1.0;
  // Whether gradients have the same bits twice without LibTorch's deterministic algorithms.
  bool repeats = true;
  // Whether its time counts: kernels run in it, and do not stand aside for LibTorch's operators.
  bool is_timed = true;
  // How often its fused form runs at the same sizes at least, where its first run there takes
  // longer, as it makes a plan: each bears its part of that. 0: the first run does not count.
  int64_t runs_a_plan = 0;
  // Places of inputs that are float32 whatever the others are rounded to.
  std::vector<size_t> of_float32 = {};
  // In the place of `run`, where what is made ready before does not count as its time.
  std::function<std::function<Traced()>(const Tensors& inputs)> prepare = {};

  std::function<Traced()> ready(const Tensors& given) const {
    if (prepare) return prepare(given);
    return [this, given] { return run(given); };
  }
  at::ScalarType dtype_of(size_t input, at::ScalarType dtype) const {
    return std::ranges::find(of_float32, input) == of_float32.end() ? dtype : at::kFloat;
  }
};

struct Comparison {
  double value_error = 0.0, gradient_error = 0.0;  // the largest, of each tensor's own scale
  bool values_repeat = true, gradients_repeat = true;
};

// Runs the operator twice on `device` in `dtype`, with such kernels, and once composed in float64
// on the CPU with the same inputs.
Comparison compare(const Operator& op, at::ScalarType dtype, at::Device device,
                   ops::Kernels kernels);

// The largest error of values that one product or norm in `dtype` may have; gradients twice that.
double bound(at::ScalarType dtype);

// Milliseconds of `work`: between events on the device's current stream, on the CPU by the clock.
double milliseconds(at::Device device, const std::function<void()>& work);

// Which kernels run while it lives.
class ChosenKernels {
 public:
  explicit ChosenKernels(ops::Kernels kernels) : before_(ops::kernels()) {
    ops::set_kernels(kernels);
  }
  ~ChosenKernels() { ops::set_kernels(before_); }
  ChosenKernels(const ChosenKernels&) = delete;
  ChosenKernels& operator=(const ChosenKernels&) = delete;

 private:
  ops::Kernels before_;
};

}  // namespace atelier::tune
