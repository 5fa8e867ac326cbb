// What the user sees of a run: the line of progress, metrics, validation, and previews.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "host/run/metrics.h"
#include "host/samples/timesteps.h"
#include "host/train/agreement.h"
#include "host/train/objective.h"
#include "host/train/run_state.h"
#include "host/train/step_memory.h"
#include "host/train/train_step.h"
#include "memory/device_meter.h"

namespace atelier::train {

// Changes nothing of the run. Not thread-safe; everything that it is given outlives it.
class Monitor {
 public:
  Monitor(const RunContext& context, RunState& state, Objective& objective,
          const samples::Timesteps& timesteps, const Agreement& agreement,
          const StepMemory& memory);

  // Opens the files of metrics. What they have of steps behind the one that is resumed is cut off.
  void open();
  // The first step begins: rates count from here.
  void begin();
  // Leaves `seconds` that went to something else than steps out of the rates, of which this process
  // `waited` for others.
  void leave_out(double seconds, double waited = 0.0);
  // Seconds that samples were waited for, since begin().
  void wait_for_samples(double seconds) { waited_for_samples_ = seconds; }
  // What this process has used, since begin().
  Usage usage() const;

  // A step that was not skipped.
  void log(const StepResult& result, bool is_last);
  // "loss 0.1234 lr 1.0e-04 …", of the last step that was logged.
  const std::string& note() const { return note_; }

  // The losses on a grid of noise levels, of the validation samples. A signal ends it early. Throws
  // Error{kOutOfMemory} in all processes when one has too little memory for it.
  void validate();
  // Images are not worth a run: what goes wrong with their files is told, and that they do not fit
  // into memory, unless several processes draw them together. Then that is thrown as by validate().
  void preview();
  // Whether one of them threw what it throws in all processes.
  bool ends_together() const { return ends_together_; }

 private:
  // Runs `work` with the averages, where there are any. A signal may end it; the loop sees to the
  // signal. Returns whether it came to its end in all processes, which throw Error{kOutOfMemory}
  // where one has too little memory for it. `name`: of the work, for that error.
  template <typename F>
  bool run_with_average(std::string_view name, F&& work);
  template <typename F>
  std::optional<Error> attempt(F&& work);
  void check_validation();
  void write(const std::map<std::string, double>& values, int64_t step);
  at::Tensor validation_losses(const std::vector<samples::Timestep>& grid);
  void show(const Preview::Shown& shown);
  void show_of_others(const std::vector<Preview::Shown>& drawn);

  const RunContext context_;
  const order::Training& config_;
  RunState& state_;
  Objective& objective_;
  const samples::Timesteps& timesteps_;
  const Agreement& agreement_;
  const StepMemory& memory_;
  Attempt::End ended_ = Attempt::End::kWhole;  // work, as far as all processes know
  bool ends_together_ = false;
  std::optional<memory::DeviceMeter> meter_;  // of a device that is not the host
  std::vector<std::unique_ptr<run::MetricsWriter>> writers_;
  double loss_sum_ = 0.0;  // since the last line of metrics
  int64_t loss_count_ = 0;
  double begin_ = 0.0, left_out_ = 0.0;                    // seconds
  double waited_for_samples_ = 0.0, waited_before_ = 0.0;  // seconds, the latter for others
  int64_t first_step_ = 0, first_sent_ = 0;                // bytes
  std::string note_;
};

}  // namespace atelier::train
