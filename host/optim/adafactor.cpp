// Adafactor (Shazeer and Stern 2018): the second moment of a matrix as a row and a column.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include "host/optim/optimizer_base.h"

namespace atelier::optim {
namespace {

// Means of the squared gradients: a row and a column for each matrix, or all of a vector.
struct SecondMoment {
  at::Tensor row, column;
  at::Tensor whole;  // undefined when factored

  bool is_factored() const { return !whole.defined(); }
};

at::Tensor root_mean_square(const at::Tensor& values) {
  return at::linalg_vector_norm(values).div_(std::sqrt(static_cast<double>(values.numel())));
}

class Adafactor : public OptimizerBase {
 public:
  Adafactor(const std::vector<Group>& groups, const Options& options);
  void step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) override;

 private:
  // The gradient, its square or update, and the moved value; copies of what has 16 bits beside
  // them.
  int64_t step_copies(size_t i) const override {
    const Slot& slot = slots_[i];
    const bool is_copied = slot.leaf.scalar_type() != at::kFloat && !slot.master.defined();
    return 3 + (slot.dtype != at::kFloat ? 1 : 0) + (is_copied ? 1 : 0);
  }
  void move(size_t i, double lr, const StepScalars::OnDevice& scalars);
  at::Tensor normalized(SecondMoment& moment, const at::Tensor& gradient, const at::Tensor& beta2,
                        const at::Tensor& keeps) const;

  std::vector<SecondMoment> moments_;  // by slot
};

Adafactor::Adafactor(const std::vector<Group>& groups, const Options& options)
    : OptimizerBase(groups, options) {
  for (const Slot& slot : slots_) {
    const auto shape = slot.leaf.sizes();
    SecondMoment& moment = moments_.emplace_back();
    if (shape.size() < 2) {
      moment.whole = add_zeros_like(slot, "exp_avg_sq");
      continue;
    }
    std::vector<int64_t> column = shape.vec();
    column.erase(column.end() - 2);
    moment.row = add_zeros(slot, "exp_avg_sq_row", shape.slice(0, shape.size() - 1));
    moment.column = add_zeros(slot, "exp_avg_sq_col", column);
  }
}

void Adafactor::step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) {
  const at::NoGradGuard no_grad;
  StepScalars scalars(grad_scale, is_skipped);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.leaf.grad().defined()) move(i, lr * slot.lr_scale, scalars.on(slot.leaf.device()));
  }
  end_step(is_skipped);
}

// Brings the second moment up to date. Returns the gradient over its root.
at::Tensor Adafactor::normalized(SecondMoment& moment, const at::Tensor& gradient,
                                 const at::Tensor& beta2, const at::Tensor& keeps) const {
  const at::Tensor squares = gradient.square().add_(options_.adafactor_eps1);
  const auto update = [&](at::Tensor& mean, const at::Tensor& now) {
    assign_unless(keeps, mean, mean.mul(beta2).add_(now.mul(1 - beta2)));
  };
  if (!moment.is_factored()) {
    update(moment.whole, squares);
    return moment.whole.rsqrt().mul_(gradient);
  }
  update(moment.row, squares.mean(-1));
  update(moment.column, squares.mean(-2));
  const at::Tensor rows = moment.row.div(moment.row.mean(-1, /*keepdim=*/true)).rsqrt_();
  return rows.unsqueeze(-1).mul(moment.column.unsqueeze(-2).rsqrt()).mul_(gradient);
}

void Adafactor::move(size_t i, double lr, const StepScalars::OnDevice& scalars) {
  const Slot& slot = slots_[i];
  slot.step.add_(scalars.count);
  // A skipped first step leaves 0, of which the power is infinite: nothing of it is kept.
  const at::Tensor beta2 = 1 - slot.step.to(at::kDouble).pow(options_.decay_rate);
  at::Tensor value = moved_value(slot);
  at::Tensor update =
      normalized(moments_[i], gradient(slot).div(scalars.grad_scale), beta2, scalars.keeps);
  update.div_(root_mean_square(update).div_(options_.clip_threshold).clamp_min_(1.0));
  at::Tensor rate = at::full({}, lr, value.options());
  if (options_.scale_parameter) {
    rate.mul_(root_mean_square(value).clamp_min_(options_.adafactor_eps2));
  }
  at::Tensor moved = value.sub(value.mul(rate.mul(slot.weight_decay)));
  assign_unless(scalars.keeps, value, moved.sub_(update.mul_(rate)));
  store(slot, value);
}

}  // namespace

std::unique_ptr<Optimizer> make_adafactor(const std::vector<Group>& groups,
                                          const Options& options) {
  return std::make_unique<Adafactor>(groups, options);
}

}  // namespace atelier::optim
