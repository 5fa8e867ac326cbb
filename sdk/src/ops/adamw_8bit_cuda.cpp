#include "ops/adamw_8bit.h"
#include "ops/cuda/row_call.h"

namespace atelier::ops::cuda {

// Defined in adamw_8bit.cu.
extern const RowKernel adamw_8bit_rows;

namespace {

using at::Tensor;

constexpr int64_t kBlock = 256;

bool is_at_a_pack(const Tensor& t) {
  return !t.defined() || is_aligned(t.const_data_ptr(), kBlock, t.element_size());
}

MomentArguments moment_of(const MomentCodes& moment, bool is_aligned) {
  return {Tensor(moment.codes).mutable_data_ptr<uint8_t>(),
          Tensor(moment.absmax).mutable_data_ptr<float>(),
          moment.values.const_data_ptr<float>(),
          moment.borders.const_data_ptr<float>(),
          moment.first_codes.const_data_ptr<uint8_t>(),
          kBlock,
          is_aligned};
}

AdamWArguments step_of(const AdamW8BitStep& step, bool is_aligned) {
  AdamWArguments result = {};
  result.numel = step.leaf.numel();
  if (step.master.defined()) result.master = Tensor(step.master).mutable_data_ptr<float>();
  result.moments[0] = moment_of(step.exp_avg, is_aligned);
  result.moments[1] = moment_of(step.exp_avg_sq, is_aligned);
  result.grad_scale = step.grad_scale.const_data_ptr<float>();
  result.is_skipped = step.is_skipped.const_data_ptr<float>();
  result.corrections = step.corrections.const_data_ptr<float>();
  // The first moment goes from its nearer end.
  const auto rest1 = static_cast<float>(1 - step.beta1);
  result.lerps_back = std::abs(rest1) >= 0.5f;
  result.lerp = result.lerps_back ? rest1 - 1.0f : rest1;
  result.beta2 = static_cast<float>(step.beta2);
  result.rest2 = static_cast<float>(1 - step.beta2);
  result.eps = static_cast<float>(step.eps);
  result.decay = static_cast<float>(step.decay);
  result.key[0] = step.key[0], result.key[1] = step.key[1];
  result.parameter = step.parameter, result.step = step.step;
  result.first = step.first;
  return result;
}

void take_step(const AdamW8BitStep& step) {
  const Segments blocks = one_sample(step.exp_avg.absmax.numel());
  RowCall call(adamw_8bit_rows, step.leaf, blocks, kBlock, /*adds_up_rows=*/true, 0);
  const bool aligned = is_at_a_pack(step.leaf) && is_at_a_pack(step.gradient) &&
                       is_at_a_pack(step.master) && is_at_a_pack(step.exp_avg.codes) &&
                       is_at_a_pack(step.exp_avg_sq.codes);
  Tensor leaf = step.leaf;
  const bool is_wide = step.gradient.scalar_type() != leaf.scalar_type();
  call.arguments.x = {step.gradient.const_data_ptr(), kBlock, aligned, is_wide};
  call.arguments.y = {leaf.const_data_ptr(), kBlock, aligned, false};
  call.arguments.out = {leaf.mutable_data_ptr(), kBlock, aligned};
  call.arguments.adamw = step_of(step, aligned);
  call.run();
}

const DeviceKernels adamw_8bit(row_device(), adamw_8bit_kernels, {.step = take_step, .limits = {}});

}  // namespace
}  // namespace atelier::ops::cuda
