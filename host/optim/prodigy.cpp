// Prodigy (Mishchenko and Defazio 2024): Adam that estimates its own step size d, from how far the
// parameters have come along the gradients.
#include <cmath>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "host/optim/optimizer_base.h"

namespace atelier::optim {
namespace {

struct Estimates {
  at::Tensor exp_avg, exp_avg_sq, s;  // float32
  at::Tensor start;                   // the first values, in their dtype
};

// Float64 scalars on the device of the first parameter.
struct StepSize {
  at::Tensor d;          // never falls
  at::Tensor numerator;  // of the estimate
  at::Tensor count;      // of steps made
};

at::Tensor first_value(const Slot& slot) {
  return slot.leaf.detach().to(slot.dtype, /*non_blocking=*/false, /*copy=*/true);
}

class Prodigy : public OptimizerBase {
 public:
  Prodigy(const std::vector<Group>& groups, const Options& options, Sum sum);
  void step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) override;
  std::map<std::string, double> metrics() const override;

 private:
  // The gradient, the way from the start, and two of what the estimates become.
  int64_t step_copies(size_t /*i*/) const override { return 4; }
  at::Tensor scaled_rate(double lr) const;
  void accumulate(size_t i, const at::Tensor& rate, const StepScalars::OnDevice& scalars);
  void add_up_sums();
  void estimate_step_size(const at::Tensor& keeps);
  void move(size_t i, const at::Tensor& rate, const at::Tensor& keeps);

  const Sum sum_;  // null: parameters are whole
  double beta3_;
  StepSize size_;
  std::vector<Estimates> estimates_;    // by slot
  at::Tensor numerator_, denominator_;  // of the running step
  at::Tensor is_still_;                 // bool: no gradient in it was other than zero
};

Prodigy::Prodigy(const std::vector<Group>& groups, const Options& options, Sum sum)
    : OptimizerBase(groups, options),
      sum_(std::move(sum)),
      beta3_(options.prodigy_beta3.value_or(std::sqrt(options.beta2))) {
  const at::NoGradGuard no_grad;
  for (const Slot& slot : slots_) {
    estimates_.push_back({.exp_avg = add_zeros_like(slot, "exp_avg"),
                          .exp_avg_sq = add_zeros_like(slot, "exp_avg_sq"),
                          .s = add_zeros_like(slot, "s"),
                          .start = add_part(slot, "start", first_value(slot))});
  }
  const auto scalars =
      at::TensorOptions(slots_.empty() ? at::kCPU : slots_[0].leaf.device()).dtype(at::kDouble);
  size_ = {.d = add_state("prodigy.d", at::full({}, options.prodigy_d0, scalars)),
           .numerator = add_state("prodigy.numerator", at::zeros({}, scalars)),
           .count = add_state("prodigy.count", at::zeros({}, scalars))};
}

// The step size of this step, float64.
at::Tensor Prodigy::scaled_rate(double lr) const {
  const at::Tensor rate = size_.d.mul(lr);
  if (!options_.prodigy_use_bias_correction) return rate;
  const at::Tensor step = size_.count.add(1);
  const auto correction = [&](double beta) { return 1 - at::pow(beta, step); };
  return rate.mul(correction(options_.beta2).sqrt()).div(correction(options_.beta1));
}

// What a parameter's gradient adds to its moments and to the estimate of d.
void Prodigy::accumulate(size_t i, const at::Tensor& rate, const StepScalars::OnDevice& scalars) {
  const Slot& slot = slots_[i];
  const at::Device device = slot.leaf.device();
  const at::Tensor gradient = OptimizerBase::gradient(slot).div(scalars.grad_scale);
  const at::Tensor d = size_.d.to(device);
  const at::Tensor over_start = d.div(options_.prodigy_d0);
  Estimates& mine = estimates_[i];
  const auto average = [&](at::Tensor& mean, double beta, const at::Tensor& added) {
    assign_unless(scalars.keeps, mean, mean.mul(beta).add_(added));
  };
  const at::Tensor way = mine.start.to(at::kFloat).sub(moved_value(slot));
  numerator_.add_(
      over_start.mul(rate).mul(at::dot(gradient.flatten(), way.flatten())).to(numerator_.device()));
  average(mine.exp_avg, options_.beta1, gradient.mul(d.mul(1 - options_.beta1)));
  average(mine.exp_avg_sq, options_.beta2,
          gradient.square().mul_(d.mul(d).mul(1 - options_.beta2)));
  average(mine.s, beta3_,
          gradient.mul(over_start.mul(options_.prodigy_safeguard_warmup ? d : rate)));
  // A parameter with a rate of its own is one measured in other units: s is as much larger.
  denominator_.add_(mine.s.abs().sum().mul(slot.lr_scale).to(denominator_.device()));
}

// What a step adds to both is, so far, of this process's shards.
void Prodigy::add_up_sums() {
  at::Tensor both = at::stack({numerator_, denominator_});
  sum_(both);
  numerator_ = size_.numerator.mul(beta3_).add_(both[0]);
  denominator_ = both[1];
}

void Prodigy::estimate_step_size(const at::Tensor& keeps) {
  const at::Tensor estimate = numerator_.div(denominator_).mul_(options_.prodigy_d_coef);
  is_still_ = denominator_.eq(0).logical_or_(keeps);
  assign_unless(is_still_, size_.d, at::maximum(size_.d, estimate));
  assign_unless(is_still_, size_.numerator, numerator_);
  size_.count.add_(is_still_.logical_not());
}

// `rate` is from before d was estimated, the addition to the root from after: as published.
void Prodigy::move(size_t i, const at::Tensor& rate, const at::Tensor& keeps) {
  const Slot& slot = slots_[i];
  const Estimates& mine = estimates_[i];
  const at::Tensor d = size_.d.to(slot.leaf.device());
  const at::Tensor root = mine.exp_avg_sq.sqrt().add_(d.mul(options_.eps));
  at::Tensor value = moved_value(slot);
  at::Tensor moved = value.sub(value.mul(rate.mul(slot.weight_decay)));
  assign_unless(keeps, value, moved.sub_(mine.exp_avg.div(root).mul_(rate)));
  slot.step.add_(keeps.logical_not());
  store(slot, value);
}

void Prodigy::step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> moving;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].leaf.grad().defined()) moving.push_back(i);
  }
  // At a learning rate of 0, where a warm-up begins, there is nothing to learn about d.
  if (moving.empty() || lr <= 0) return;
  StepScalars scalars(grad_scale, is_skipped);
  const at::Tensor rate = scaled_rate(lr);
  denominator_ = at::zeros_like(size_.numerator);
  numerator_ = sum_ ? at::zeros_like(denominator_) : size_.numerator.mul(beta3_);
  for (const size_t i : moving) {
    const at::Device device = slots_[i].leaf.device();
    accumulate(i, rate.to(device), scalars.on(device));
  }
  if (sum_) add_up_sums();
  estimate_step_size(scalars.on(numerator_.device()).keeps);
  for (const size_t i : moving) {
    const at::Device device = slots_[i].leaf.device();
    move(i, rate.mul(slots_[i].lr_scale).to(device), is_still_.to(device));
  }
  end_step(is_skipped);
}

std::map<std::string, double> Prodigy::metrics() const {
  return {{"d", size_.d.item<double>()}};
}

}  // namespace

std::unique_ptr<Optimizer> make_prodigy(const std::vector<Group>& groups, const Options& options,
                                        Sum sum) {
  return std::make_unique<Prodigy>(groups, options, std::move(sum));
}

}  // namespace atelier::optim
