// AdamW (Loshchilov and Hutter 2019), with moments of 32 or of 8 bits.
#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "host/optim/blockwise.h"
#include "host/optim/optimizer_base.h"

namespace atelier::optim {
namespace {

// Elements whose float32 copies may exist at one time.
constexpr int64_t kBatchElements = int64_t{1} << 25;

struct Moments {
  at::Tensor exp_avg, exp_avg_sq;  // float32; undefined where quantised
  Blockwise exp_avg_8bit = {}, exp_avg_sq_8bit = {.codes = {}, .absmax = {}, .is_signed = false};

  bool is_quantized() const { return !exp_avg.defined(); }
};

class AdamW : public OptimizerBase {
 public:
  AdamW(const std::vector<Group>& groups, const Options& options);
  void step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) override;
  int64_t step_bytes() const override;
  bool has_parts() const override { return true; }
  void step_part(std::span<const size_t> places, double lr, const at::Tensor& grad_scale,
                 const at::Tensor& is_skipped) override;

 private:
  using Batches = std::vector<std::vector<size_t>>;

  Blockwise add_quantized(const Slot& slot, const std::string& what, bool is_signed);
  int64_t step_copies(size_t i) const override;
  bool needs_copies(size_t i) const;
  bool fits_batch(const std::vector<size_t>& batch, size_t i) const;
  void add_to_batches(size_t i, Batches& batches) const;
  void move(const std::vector<size_t>& batch, double lr, const StepScalars::OnDevice& scalars);
  void move_composed(const std::vector<size_t>& moved, double lr,
                     const StepScalars::OnDevice& scalars);
  void move_fused(const std::vector<size_t>& moved, double lr,
                  const StepScalars::OnDevice& scalars);

  std::vector<Moments> moments_;  // by slot
  // Slots that one call moves: of one device, learning rate and weight decay.
  Batches batches_;
};

AdamW::AdamW(const std::vector<Group>& groups, const Options& options)
    : OptimizerBase(groups, options) {
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    Moments& moments = moments_.emplace_back();
    if (options.kind == Kind::kAdamW8bit && slot.whole_numel >= kLeastQuantized) {
      moments.exp_avg_8bit = add_quantized(slot, "exp_avg", /*is_signed=*/true);
      moments.exp_avg_sq_8bit = add_quantized(slot, "exp_avg_sq", /*is_signed=*/false);
    } else {
      moments.exp_avg = add_zeros_like(slot, "exp_avg");
      moments.exp_avg_sq = add_zeros_like(slot, "exp_avg_sq");
    }
    add_to_batches(i, batches_);
  }
}

void AdamW::add_to_batches(size_t i, Batches& batches) const {
  const auto batch = std::find_if(batches.begin(), batches.end(),
                                  [&](const auto& batch) { return fits_batch(batch, i); });
  if (batch == batches.end()) {
    batches.push_back({i});
  } else {
    batch->push_back(i);
  }
}

Blockwise AdamW::add_quantized(const Slot& slot, const std::string& what, bool is_signed) {
  const int64_t blocks = (slot.leaf.numel() + kQuantizedBlock - 1) / kQuantizedBlock;
  const at::Tensor absmax = at::zeros({blocks}, slot.step.options());
  return {add_zeros_like(slot, what, at::kByte),
          add_part(slot, what + "_absmax", absmax, /*per=*/kQuantizedBlock), is_signed};
}

// Copies of a 16-bit gradient, of a value without a master, and of 8-bit moments.
int64_t AdamW::step_copies(size_t i) const {
  const Slot& slot = slots_[i];
  const bool is_quantized = moments_[i].is_quantized();
  if (is_quantized && ops::has_adamw_8bit(slot.leaf)) return 0;
  int64_t copies = slot.dtype != at::kFloat ? 1 : 0;
  if (slot.leaf.scalar_type() != at::kFloat && !slot.master.defined()) copies += 1;
  return copies + (is_quantized ? 2 : 0);
}

int64_t AdamW::step_bytes() const {
  int64_t most = 0;
  for (const std::vector<size_t>& batch : batches_) {
    int64_t bytes = 0;
    for (const size_t i : batch) bytes += bytes_of_copies(i);
    most = std::max(most, bytes);
  }
  return most;
}

bool AdamW::needs_copies(size_t i) const {
  return slots_[i].dtype != at::kFloat || moments_[i].is_quantized();
}

bool AdamW::fits_batch(const std::vector<size_t>& batch, size_t i) const {
  const Slot& first = slots_[batch.front()];
  const Slot& slot = slots_[i];
  if (first.leaf.device() != slot.leaf.device() || first.lr_scale != slot.lr_scale ||
      first.weight_decay != slot.weight_decay || needs_copies(batch.front()) != needs_copies(i)) {
    return false;
  }
  if (!needs_copies(i)) return true;
  int64_t elements = slot.leaf.numel();
  for (const size_t other : batch) elements += slots_[other].leaf.numel();
  return elements <= kBatchElements;
}

void AdamW::step(double lr, const at::Tensor& grad_scale, const at::Tensor& is_skipped) {
  const at::NoGradGuard no_grad;
  StepScalars scalars(grad_scale, is_skipped);
  for (const auto& batch : batches_) {
    move(batch, lr, scalars.on(slots_[batch.front()].leaf.device()));
  }
  end_step(is_skipped);
}

void AdamW::step_part(std::span<const size_t> places, double lr, const at::Tensor& grad_scale,
                      const at::Tensor& is_skipped) {
  const at::NoGradGuard no_grad;
  StepScalars scalars(grad_scale, is_skipped);
  Batches batches;
  for (const size_t i : places) add_to_batches(i, batches);
  for (const auto& batch : batches) {
    move(batch, lr, scalars.on(slots_[batch.front()].leaf.device()));
  }
}

void AdamW::move(const std::vector<size_t>& batch, double lr,
                 const StepScalars::OnDevice& scalars) {
  std::vector<size_t> composed, fused;
  std::vector<at::Tensor> steps;
  for (const size_t i : batch) {
    const Slot& slot = slots_[i];
    if (!slot.leaf.grad().defined()) continue;
    steps.push_back(slot.step);
    if (slot.leaf.numel() == 0) continue;  // the others move their shards
    const bool is_fused = moments_[i].is_quantized() && ops::has_adamw_8bit(slot.leaf);
    (is_fused ? fused : composed).push_back(i);
  }
  if (!steps.empty()) at::_foreach_add_(steps, scalars.count);
  if (!composed.empty()) move_composed(composed, lr, scalars);
  if (!fused.empty()) move_fused(fused, lr, scalars);
}

// One kernel for each parameter. All are of one device, learning rate and weight decay.
void AdamW::move_fused(const std::vector<size_t>& moved, double lr,
                       const StepScalars::OnDevice& scalars) {
  const double rate = lr * slots_[moved.front()].lr_scale;
  std::vector<at::Tensor> counts;
  for (const size_t i : moved) counts.push_back(slots_[i].step);
  const at::Tensor count = at::stack(counts).to(at::kDouble);
  const auto correction = [&](double beta) { return at::pow(beta, count).neg_().add_(1.0); };
  const at::Tensor corrections = at::stack({correction(options_.beta1).reciprocal_().mul_(rate),
                                            correction(options_.beta2).sqrt_()},
                                           1)
                                     .to(at::kFloat);
  for (size_t k = 0; k < moved.size(); ++k) {
    const Slot& slot = slots_[moved[k]];
    const Moments& moments = moments_[moved[k]];
    ops::AdamW8BitStep step{.leaf = slot.leaf.detach(),
                            .gradient = slot.leaf.grad().detach().contiguous(),
                            .master = slot.master,
                            .exp_avg = moment_codes(moments.exp_avg_8bit),
                            .exp_avg_sq = moment_codes(moments.exp_avg_sq_8bit),
                            .grad_scale = scalars.grad_scale,
                            .is_skipped = scalars.is_skipped,
                            .corrections = corrections[static_cast<int64_t>(k)],
                            .beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .eps = options_.eps,
                            .decay = 1 - rate * slot.weight_decay};
    if (slot.leaf.scalar_type() != at::kFloat && !slot.master.defined()) {
      const RoundingKey key = rounding_key(slot);
      step.key = philox_key(key);
      step.parameter = key.parameter;
      step.step = key.step;
      step.first = key.first;
    }
    ops::adamw_8bit(step);
  }
}

void AdamW::move_composed(const std::vector<size_t>& moved, double lr,
                          const StepScalars::OnDevice& scalars) {
  std::vector<at::Tensor> values, gradients, exp_avgs, exp_avg_sqs, steps;
  for (const size_t i : moved) {
    const Slot& slot = slots_[i];
    const Moments& moments = moments_[i];
    const bool is_quantized = moments.is_quantized();
    values.push_back(moved_value(slot));
    gradients.push_back(gradient(slot));
    exp_avgs.push_back(is_quantized ? dequantize(moments.exp_avg_8bit) : moments.exp_avg);
    exp_avg_sqs.push_back(is_quantized ? dequantize(moments.exp_avg_sq_8bit) : moments.exp_avg_sq);
    steps.push_back(slot.step);
  }
  const Slot& first = slots_[moved.front()];
  at::_fused_adamw_(values, gradients, exp_avgs, exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps,
                    lr * first.lr_scale, options_.beta1, options_.beta2, first.weight_decay,
                    options_.eps, /*amsgrad=*/false, /*maximize=*/false, scalars.grad_scale,
                    scalars.is_skipped);
  for (size_t k = 0; k < moved.size(); ++k) {
    Moments& moments = moments_[moved[k]];
    if (moments.is_quantized()) {
      quantize(exp_avgs[k], scalars.keeps, moments.exp_avg_8bit);
      quantize(exp_avg_sqs[k], scalars.keeps, moments.exp_avg_sq_8bit);
    }
    store(slots_[moved[k]], values[k]);
  }
}

}  // namespace

std::unique_ptr<Optimizer> make_adamw(const std::vector<Group>& groups, const Options& options) {
  return std::make_unique<AdamW>(groups, options);
}

}  // namespace atelier::optim
