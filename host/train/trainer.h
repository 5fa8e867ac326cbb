// The loop of a training run: what is done when, from the first step to the last.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "host/data/order.h"
#include "host/samples/timesteps.h"
#include "host/train/agreement.h"
#include "host/train/monitor.h"
#include "host/train/objective.h"
#include "host/train/run_state.h"
#include "host/train/step_memory.h"
#include "host/train/train_step.h"
#include "memory/clock.h"

namespace atelier::train {

// Optimizer steps of the whole run.
int64_t count_steps(const samples::Samples& samples, const order::Training& config);

// Not thread-safe.
//
// A step is a function of its number, of the trained tensors and of the optimizer's state: all
// random numbers are keyed by seed, step and place in the step. So a run that continues from a
// saved state gives the bits of one that was never interrupted.
class Trainer {
 public:
  // The denoiser and every component of `selection` are loaded. `now`: see Agreement.
  Trainer(const RunContext& context, parameters::Selection selection,
          std::function<double()> now = memory::seconds_now);

  // Continues from `saved_state`, which check_resume() has let through.
  void resume(const run::SavedState& saved_state) { state_.resume(saved_state); }

  int64_t total_steps() const { return total_steps_; }
  int64_t trained_count() const { return state_.trained().count(); }  // of numbers

  // Trains to the end, or until a signal asks to leave: then state and weights are saved. Returns
  // the exit code. Throws Error{kNumerics} when too many steps in a row were not finite.
  //
  // A step that does not fit into the device's memory is made again from its start with less kept
  // for the backward pass, to the same bits. When nothing is left to drop, processes compute the
  // step together, or a validation or sample images that all draw together do not fit: state and
  // weights of the last finished step are saved, and Error{kOutOfMemory} is thrown by all
  // processes.
  int run();

 private:
  struct Outcome {
    Attempt attempt;                   // of all processes
    std::optional<StepResult> result;  // of one that is whole
    std::optional<Error> failure;      // of the others
  };
  double waited_for_others() const;  // seconds
  StepData read_step(int64_t step) const;
  StepData read(data::StepBatches plan, int64_t step, bool is_trial = false) const;
  std::vector<std::vector<int64_t>> calls_of(const data::StepBatches& plan) const;
  void try_largest();
  std::optional<StepResult> make_step(const StepData& data);
  Outcome attempt_step(const StepData& data);
  Outcome leave_step(Outcome outcome);
  std::string place_of(const StepData& data) const;  // "step 5"
  void settle();
  void look(void (Monitor::*work)());
  void after_step(const data::StepBatches& plan);
  void save(const std::string& name, bool is_last = false);
  void wait_for_first();
  void loop(progress::Step& bar);
  int leave() const;

  const RunContext context_;
  const order::Training& config_;
  data::Order order_;
  const std::vector<int64_t> costs_;  // of each sample
  int64_t total_steps_;
  bool settles_at_once_;  // there is no device that could go on meanwhile
  RunState state_;
  StepMemory memory_;
  samples::Timesteps timesteps_;
  Objective objective_;
  TrainStep step_;
  Agreement agreement_;
  Monitor monitor_;
  uint64_t caption_seed_, frames_seed_;
  std::optional<StepResult> pending_;  // of the last step, not read back yet
  bool has_reported_ = false;          // who holds the memory
  bool fails_together_ = false;        // all processes have agreed on it
};

}  // namespace atelier::train
