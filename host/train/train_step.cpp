#include "host/train/train_step.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

#include "host/distributed/gradients.h"
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

std::vector<Tensor> leaves_of(const TrainedTensors& trained) {
  std::vector<Tensor> leaves;
  for (const optim::Group& group : trained.groups()) {
    for (const optim::Parameter& parameter : group.parameters) leaves.push_back(parameter.leaf);
  }
  return leaves;
}

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
  if (group != nullptr) sums_ = trained.placement().sum_gradients(*group, leaves_of(trained));
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
  if (sums_) sums_->open(denoiser, data.plan.passes);
  loss_ = accumulate(data, step) / config_.sequence_parallel;  // which so many ranks have
  begin_phase("optimizer", step);
  if (data.batches.empty()) trained_.placement().complete();
  if (sums_) {
    const auto beside = trained_.placement().allocate_beside();
    sums_->send_rest();
  }
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
    trained_.placement().complete();  // also where blocks did not run
    total = total.defined() ? total + loss.detach() : loss.detach();
    begin_phase("backward", step);
    // Parameters may move while the last pass goes on, unless their gradients are to be scaled by
    // what is known after it.
    std::optional<HostGradients::Move> move;
    if (is_last && config_.task != Task::kDirectDistill && step + 1 < lr_schedule_.total_steps)
      objective_.expect(step + 1);
    if (sums_) sums_->begin_pass(is_last);
    const bool can_move = !sums_ && config_.max_grad_norm == 0;
    if (is_last && can_move && optimizer_.has_parts()) move = {&optimizer_, learning_rate(step)};
    trained_.placement().backward(loss, total, move);
    if (sums_ && !is_last) sums_->end_pass();
  }
  return total.defined() ? total : at::zeros({});
}

StepResult TrainStep::update(int64_t step) {
  const at::NoGradGuard no_grad;
  ParameterPlacement& placement = trained_.placement();
  const auto beside = placement.allocate_beside();
  Tensor loss = loss_;
  if (sums_) {
    loss = sums_->finish().to(loss.device());
    placement.take_gradients();
  }
  const optim::GradientNorm measured = optim::measure_gradients(
      trained_.moved(), loss, config_.max_grad_norm, placement.norms(), placement.sum());
  is_moving_ = true;
  StepResult result = {.step = step + 1,
                       .lr = learning_rate(step),
                       .loss = loss,
                       .norm = measured.norm,
                       .is_skipped = measured.is_skipped};
  optimizer_.step(result.lr, measured.grad_scale, measured.is_skipped);
  result.has_moved = placement.has_moved();
  trained_.clear_gradients();
  placement.publish_ahead();
  is_moving_ = false;
  return result;
}

bool TrainStep::give_up() {
  trained_.placement().give_up();
  if (sums_) {
    const auto beside = trained_.placement().allocate_beside();
    sums_->give_up();
  }
  is_spoilt_ = is_spoilt_ || is_moving_ || trained_.placement().has_moved();
  trained_.clear_gradients();
  return is_spoilt_;
}

}  // namespace atelier::train
