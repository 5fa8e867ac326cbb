#include "host/tune/operator_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

namespace atelier::tune {
namespace {

struct Outcome {
  Tensors values, gradients;
};

// Gradients of the sum of the values times fixed noise.
Outcome run_once(const Operator& op, const Tensors& inputs, at::ScalarType noise_dtype) {
  Tensors leaves;
  for (const at::Tensor& t : inputs) leaves.push_back(t.detach().clone().requires_grad_());
  const Traced traced = op.ready(leaves)();
  Outcome outcome;
  Tensors factors;
  uint64_t seed = 1234;
  for (const at::Tensor& output : traced.outputs) {
    at::Generator generator = at::detail::createCPUGenerator(seed++);
    factors.push_back(at::randn(output.sizes(), generator, at::kDouble)
                          .to(noise_dtype)
                          .to(output.device(), output.scalar_type()));
    outcome.values.push_back(output.detach().cpu());
  }
  for (const at::Tensor& gradient : gradients(traced, factors))
    outcome.gradients.push_back(gradient.defined() ? gradient.cpu() : gradient);
  return outcome;
}

// The error of one tensor, in units of its own largest value; infinite for NaN and for another
// shape.
double error(const at::Tensor& value, const at::Tensor& reference) {
  if (value.defined() != reference.defined()) return INFINITY;
  if (!value.defined()) return 0;
  if (value.sizes() != reference.sizes()) return INFINITY;
  if (value.numel() == 0) return 0;
  const at::Tensor want = reference.to(at::kDouble);
  const double far = (value.to(at::kDouble) - want).abs().max().item<double>();
  return std::isnan(far) ? INFINITY : far / std::max(1e-30, want.abs().max().item<double>());
}

double largest_error(const Tensors& values, const Tensors& references) {
  if (values.size() != references.size()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < values.size(); ++i)
    worst = std::max(worst, error(values[i], references[i]));
  return worst;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || at::equal(x, y));
  });
}

}  // namespace

Tensors gradients(const Traced& traced, const Tensors& grads) {
  if (traced.inputs.empty()) return {};
  return torch::autograd::grad(traced.outputs, traced.inputs, grads, /*retain_graph=*/false,
                               /*create_graph=*/false, /*allow_unused=*/true);
}

Comparison compare(const Operator& op, at::ScalarType dtype, at::Device device,
                   ops::Kernels kernels) {
  Tensors there, exact;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const at::Tensor rounded = op.inputs[i].to(op.dtype_of(i, dtype));
    there.push_back(rounded.to(device));
    exact.push_back(rounded.to(at::kDouble));
  }
  const auto run = [&](const Tensors& inputs, ops::Kernels chosen) {
    const ChosenKernels choice(chosen);
    return run_once(op, inputs, dtype);
  };
  const Outcome want = run(exact, ops::Kernels::kComposed);
  const Outcome first = run(there, kernels), second = run(there, kernels);
  return {.value_error = largest_error(first.values, want.values),
          .gradient_error = largest_error(first.gradients, want.gradients),
          .values_repeat = same_bits(first.values, second.values),
          .gradients_repeat = same_bits(first.gradients, second.gradients)};
}

double milliseconds(at::Device device, const std::function<void()>& work) {
  if (device.is_cpu()) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  work();
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end);
}

double bound(at::ScalarType dtype) {
  return dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 2e-3 : 1.6e-2;
}

}  // namespace atelier::tune
