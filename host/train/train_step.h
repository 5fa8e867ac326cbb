// One optimizer step: forward and backward passes of its batches, clipping, and the move.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "host/data/order.h"
#include "host/distributed/group.h"
#include "host/optim/lr_schedule.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/trained.h"
#include "host/run/memory_timeline.h"
#include "host/train/objective.h"
#include "host/train/step_memory.h"

namespace atelier::train {

// What a step learns from: batches of samples whose latents have one shape.
struct StepData {
  data::StepBatches plan;
  std::vector<std::vector<StepSample>> batches;
  // For each batch, how often distillation runs the denoisers, see Objective; empty: as needed.
  std::vector<std::vector<int64_t>> calls = {};
  bool is_trial = false;  // of whether it fits: everything is done but the move
};

// What a step gave. The tensors are scalars on the device, and may not be computed yet.
struct StepResult {
  int64_t step = 0, epoch = 0;  // its number, from 1
  double lr = 0.0;
  at::Tensor loss, norm, is_skipped;
  std::string denoiser = {};  // that was drawn for it
  bool has_moved = false;     // on the way: of a skipped step not everything was left as it was
};

// Not thread-safe; everything that it is given outlives it.
class TrainStep {
 public:
  TrainStep(const order::Training& config, parameters::TrainedTensors& trained,
            optim::Optimizer& optimizer, Objective& objective, StepMemory& memory,
            int64_t total_steps, run::MemoryTimeline* timeline,
            distributed::Group* group = nullptr);

  // Makes step `step`, from 0. The loss is the mean over all samples of the step; when it or a
  // gradient is not finite, the optimizer moves nothing. After an exception: give_up().
  // `before_move`: called before the optimizer works, where it is given; of several processes it
  // calls gather_status(). Each has its batches of the step, or none; loss, norm and what is moved
  // are those of the whole step.
  StepResult run(const StepData& data, int64_t step, const std::function<void()>& before_move = {});

  // Between the passes of a step and its move, where there are several processes, and behind
  // give_up() where it did not come so far: see GradientSums::gather_status().
  at::Tensor gather_status(const std::vector<double>& numbers) {
    return trained_.placement().gather_status(loss_, numbers);
  }

  // Drops what is left of a step that did not come to its end. Returns whether it had begun to move
  // parameters: it cannot be made again then, and the state is that of no step. Waits for the other
  // processes where they count on gradients of this one.
  bool give_up() { return trained_.placement().give_up(); }

 private:
  at::Tensor forward(const StepData& data, size_t batch, int64_t step);
  at::Tensor accumulate(const StepData& data, int64_t step);
  StepResult update(int64_t step);
  double learning_rate(int64_t step) const;
  void begin_phase(const char* name, int64_t step);

  const order::Training& config_;
  parameters::TrainedTensors& trained_;
  optim::Optimizer& optimizer_;
  Objective& objective_;
  StepMemory& memory_;
  run::MemoryTimeline* timeline_;  // null: there is none
  optim::LrSchedule lr_schedule_;
  uint64_t layers_seed_;
  at::Tensor loss_;       // of the step, of this process; undefined where it did not come so far
  int64_t num_made_ = 0;  // steps
};

}  // namespace atelier::train
