// Tools for tests on tensors: errors against a reference, gradients, bytes, leased weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/host/weight_state.h"

#include "support/errors.h"

namespace atelier::test {

using Tensors = std::vector<at::Tensor>;

// Tensors here are tiny: threads would cost more than they give.
inline const bool one_thread = (at::set_num_threads(1), true);

inline at::Tensor seeded(at::IntArrayRef sizes, uint64_t seed = 1) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::kFloat);
}

// Largest difference over the largest value of `references`; infinite for NaN, another shape or one
// undefined.
inline double error(const Tensors& values, const Tensors& references) {
  if (values.size() != references.size()) return INFINITY;
  double worst = 0, scale = 1e-30;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].defined() != references[i].defined()) return INFINITY;
    if (!values[i].defined()) continue;
    if (values[i].sizes() != references[i].sizes()) return INFINITY;
    if (values[i].numel() == 0) continue;
    const at::Tensor want = references[i].detach().to(at::kDouble);
    const double far = (values[i].detach().to(at::kDouble) - want).abs().max().item<double>();
    if (std::isnan(far)) return INFINITY;
    worst = std::max(worst, far);
    scale = std::max(scale, want.abs().max().item<double>());
  }
  return worst / scale;
}

inline double error(const at::Tensor& value, const at::Tensor& reference) {
  return error(Tensors{value}, Tensors{reference});
}

inline bool same_bits(const Tensors& a, const Tensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (a[i].defined() && !at::equal(a[i], b[i])) return false;
  }
  return true;
}

// Gradients of sum(outputs * fixed noise); undefined where an input does not matter.
inline Tensors gradients(const Tensors& outputs, const Tensors& inputs) {
  at::Tensor loss;
  uint64_t seed = 1234;
  for (const at::Tensor& output : outputs) {
    at::Generator generator = at::detail::createCPUGenerator(seed++);
    const at::Tensor noise = at::randn(output.sizes(), generator, at::kDouble);
    const at::Tensor term = (output * noise.to(output.scalar_type())).to(at::kDouble).sum();
    loss = loss.defined() ? loss + term : term;
  }
  return torch::autograd::grad({loss}, inputs, {}, false, false, /*allow_unused=*/true);
}

inline at::Tensor trained(const at::Tensor& t) {
  return t.detach().clone().requires_grad_();
}

inline WeightPtr make_weight(const at::Tensor& value) {
  auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
  weight->set(value);
  return weight;
}

// A store that lends its tensor: it becomes NaN when it is let go.
class LeasedStore final : public WeightStore {
 public:
  explicit LeasedStore(at::Tensor value) : value_(std::move(value)) {}
  static inline int live = 0;   // leases not given back
  static inline int drawn = 0;  // leases ever

  at::Tensor draw() const override {
    ++live;
    ++drawn;
    at::Tensor copy = value_.clone();
    return at::from_blob(
        copy.mutable_data_ptr(), copy.sizes(),
        [copy](void*) mutable {
          copy.fill_(NAN);
          --live;
        },
        copy.options());
  }

 private:
  at::Tensor value_;
};

inline WeightPtr make_leased(const at::Tensor& value) {
  auto weight = std::make_shared<Weight>("weight", value.sizes().vec());
  weight->state().set_store(std::make_shared<LeasedStore>(value));
  return weight;
}

// Bytes that the CPU allocator gives to this thread while it lives.
class Bytes {
 public:
  Bytes()
      : counter_(std::make_shared<Counter>()),
        guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}
  int64_t now() const { return counter_->now; }

 private:
  struct Counter final : c10::MemoryReportingInfoBase {
    int64_t now = 0;
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace atelier::test
