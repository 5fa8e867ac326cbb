#include "host/train/train_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/random/counter.h"

namespace atelier::train {

using order::Task;
using order::Training;
using parameters::HostGradients;
using parameters::ParameterPlacement;
using parameters::TrainedTensors;

using at::Tensor;

namespace {

constexpr int64_t kTimelineSteps = 8;  // of which memory is reported block by block

}  // namespace

TrainStep::TrainStep(const Training& config, TrainedTensors& trained, optim::Optimizer& optimizer,
                     Objective& objective, StepMemory& memory, int64_t total_steps,
                     run::MemoryTimeline* timeline, distributed::Group* group)
    : config_(config),
      trained_(trained),
      optimizer_(optimizer),
      objective_(objective),
      memory_(memory),
      timeline_(timeline),
      lr_schedule_(config.lr_schedule),
      layers_seed_(random::stream_seed(config.seed, random::Stream::kLayers)) {
  lr_schedule_.total_steps = total_steps;
  // Ranks that have other rows of the same batches drop out others of them.
  if (group != nullptr)
    layers_seed_ += static_cast<uint64_t>(group->rank() % config.sequence_parallel);
}

void TrainStep::begin_phase(const char* name, int64_t step) {
  if (timeline_ != nullptr && num_made_ < kTimelineSteps) timeline_->begin(name, step + 1);
}

double TrainStep::learning_rate(int64_t step) const {
  return config_.learning_rate * lr_schedule_.factor(step);
}

StepResult TrainStep::run(const StepData& data, int64_t step,
                          const std::function<void()>& before_move) {
  const std::string denoiser = objective_.denoiser_of(step);
  loss_.reset();
  trained_.placement().begin_step(denoiser, data.plan.passes);
  loss_ = accumulate(data, step) / config_.sequence_parallel;  // which so many ranks have
  begin_phase("optimizer", step);
  trained_.placement().end_passes();
  if (before_move) before_move();
  if (data.is_trial) {
    give_up();
    return {};
  }
  StepResult result = update(step);
  result.epoch = data.plan.epoch;
  result.denoiser = denoiser;
  if (++num_made_ == kTimelineSteps && timeline_ != nullptr) timeline_->stop();
  return result;
}

// The loss of one batch, as its part of the step's.
Tensor TrainStep::forward(const StepData& data, size_t batch, int64_t step) {
  at::manual_seed(random::below(UINT64_MAX, layers_seed_, data.plan.numbers[batch],
                                static_cast<uint32_t>(step)));
  begin_phase("forward", step);
  memory_.begin_pass();
  const std::vector<int64_t> calls =
      data.calls.empty() ? std::vector<int64_t>() : data.calls[batch];
  const Tensor sum = config_.task == Task::kDirectDistill
                         ? objective_.direct_distillation(data.batches[batch], calls)
                         : objective_.flow_matching(data.batches[batch], step);
  const double counts = batch + data.plan.spares >= data.batches.size() ? 0 : 1;
  Tensor loss = sum / static_cast<double>(data.plan.samples) * counts;
  if (!loss.requires_grad())
    throw Error(ErrorCode::kInvalidArgument, "the loss does not depend on anything that is trained",
                "choose other --trainable_models or --lora_target_modules");
  return loss;
}

// Returns the loss of the batches, which is 0 where there are none.
Tensor TrainStep::accumulate(const StepData& data, int64_t step) {
  Tensor total;
  for (size_t i = 0; i < data.batches.size(); ++i) {
    const bool is_last = i + 1 == data.batches.size();
    const Tensor loss = forward(data, i, step);
    total = total.defined() ? total + loss.detach() : loss.detach();
    begin_phase("backward", step);
    // Parameters may move while the last pass goes on, unless their gradients are to be scaled by
    // what is known after it.
    std::optional<HostGradients::Move> move;
    if (is_last && config_.task != Task::kDirectDistill && step + 1 < lr_schedule_.total_steps)
      objective_.expect(step + 1);
    if (is_last && config_.max_grad_norm == 0 && optimizer_.has_parts())
      move = {&optimizer_, learning_rate(step)};
    trained_.placement().backward(loss, total, is_last, move);
  }
  return total.defined() ? total : at::zeros({});
}

StepResult TrainStep::update(int64_t step) {
  const at::NoGradGuard no_grad;
  ParameterPlacement& placement = trained_.placement();
  const auto beside = placement.allocate_beside();
  Tensor loss = loss_;
  const optim::GradientNorm norm = placement.take_gradients(loss, config_.max_grad_norm);
  StepResult result = {.step = step + 1,
                       .lr = learning_rate(step),
                       .loss = loss,
                       .norm = norm.norm,
                       .is_skipped = norm.is_skipped};
  optimizer_.step(result.lr, norm.grad_scale, norm.is_skipped);
  result.has_moved = placement.end_step();
  return result;
}

}  // namespace atelier::train
