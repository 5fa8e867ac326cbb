// What a step keeps for its backward pass, and what can be done when that does not fit.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"
#include "atelier/error.h"

#include "host/model/memory_holders.h"
#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/trained.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"
#include "memory/activation_runner.h"
#include "memory/recompute.h"

namespace atelier::distributed {
class Group;
}

namespace atelier::train {

// The runners around the blocks of a step: activations are kept, computed again or sent to the host
// as the layout says. Not thread-safe; everything that it is given outlives it.
class StepMemory {
 public:
  // `timeline`: is given a sample after each block; null: there is none.
  StepMemory(model::LoadedModel& model, const order::Training& config,
             const parameters::Layout& layout, parameters::TrainedTensors& trained,
             progress::Progress& progress, run::MemoryTimeline* timeline);
  StepMemory(const StepMemory&) = delete;  // its runners point at each other
  StepMemory& operator=(const StepMemory&) = delete;

  // A step runs its blocks with this.
  BlockRunner& runner() { return *runner_; }
  // Before each forward pass.
  void begin_pass();

  // After a step that did not fit: less is kept from now on, and the user is told what. `step` and
  // `failure` say which step it was, and what it met.
  bool can_keep_less() const { return activations_ && activations_->can_tighten(); }
  void keep_less(const std::string& step, const Error& failure);

  // All processes come here: each keeps no more than the one that keeps least.
  void agree(distributed::Group& group);

  // Tells who holds the memory.
  void report(const optim::Optimizer& optimizer);
  // What the run ends with, and the flags that would help.
  Error does_not_fit(const Error& failure) const;

 private:
  BlockRunner& keeping_runner(BlockRunner& inner, const parameters::Layout& layout);
  std::shared_ptr<memory::Offloader> make_offloader();
  void note_plan(const memory::ActivationPlan& plan);
  model::Holder activation_holder(const memory::DeviceBytes& device) const;

  model::LoadedModel& model_;
  const order::Training& config_;
  parameters::TrainedTensors& trained_;
  progress::Progress& progress_;
  std::unique_ptr<memory::TransferDevice> transfer_;  // for activations, where the model has none
  std::shared_ptr<memory::Offloader> offloader_;
  std::optional<run::SamplingRunner> sampling_;
  std::optional<memory::RecomputeRunner> recompute_;
  std::optional<memory::ActivationRunner> activations_;
  BlockRunner* runner_;
  int64_t told_bytes_ = -1;  // of activations, in the largest plan that was told
};

}  // namespace atelier::train
