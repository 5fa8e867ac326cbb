// The loop of a training run: steps, metrics, checkpoints, and when it ends.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"

#include "host/data/order.h"
#include "host/model/memory_holders.h"
#include "host/model/model_loader.h"
#include "host/optim/ema.h"
#include "host/optim/optimizer.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"
#include "host/run/metrics.h"
#include "host/run/run_folder.h"
#include "host/train/config.h"
#include "host/train/objective.h"
#include "host/train/preview.h"
#include "host/train/samples.h"
#include "host/train/selection.h"
#include "host/train/timesteps.h"
#include "host/train/trained.h"
#include "memory/activation_runner.h"
#include "memory/recompute.h"

namespace atelier::train {

// What a run works on; everything outlives the trainer.
struct RunParts {
  model::LoadedModel& model;
  const Config& config;
  const Samples& samples;
  const Samples* validation;  // null: none
  Preview* preview;           // null: no pictures during training
  run::RunFolder& folder;
  progress::Progress& progress;
  run::MemoryTimeline* timeline = nullptr;  // of the first steps; null: none
};

// Optimizer steps of the whole run.
int64_t count_steps(const Samples& samples, const Config& config);

// The name of the weights that belong to `checkpoint` and do not lie in the run's folder,
// "step-500": the run was stopped before they were written. Empty: they are there.
std::string find_weights_to_write(const run::Checkpoint& checkpoint, const Selection& selection,
                                  const Config& config);

// Not thread-safe.
//
// A step is a function of its number, of the trained tensors and of the optimizer's state: all
// random numbers are keyed by seed, step and place in the step. So a run that continues from a
// checkpoint gives the bits of one that was never interrupted.
class Trainer {
 public:
  // The denoiser and every component of `selection` are loaded.
  Trainer(const RunParts& parts, Selection selection);
  ~Trainer();

  // Continues from `checkpoint`, which check_resume() has let through.
  void resume(const run::Checkpoint& checkpoint);

  int64_t total_steps() const { return total_steps_; }
  int64_t trained_count() const { return trained_.count(); }  // of numbers

  // Trains to the end, or until a signal asks to leave: then state and weights are saved. Returns
  // the exit code. Throws Error{kNumerics} when too many steps in a row were not finite.
  //
  // A step that does not fit into the device's memory is made again from its start with less kept
  // for the backward pass, to the same bits. When nothing is left to drop: state and weights of the
  // last finished step are saved, and Error{kOutOfMemory} is thrown.
  int run();

 private:
  struct StepData {
    data::StepPlan plan;
    std::vector<std::vector<PlacedSample>> batches;
  };
  // What a step gave, still on the device.
  struct Outcome {
    int64_t step = 0, epoch = 0;
    double lr = 0.0;
    at::Tensor loss, norm, is_skipped;
    bool has_moved = false;  // on the way: of a skipped step not everything was left as it was
  };

  std::unique_ptr<optim::Optimizer> make_optimizer();
  BlockRunner& make_runner();
  BlockRunner& recomputing(BlockRunner& inner);
  std::shared_ptr<memory::Offloader> make_offloader();
  void tell(const memory::ActivationPlan& plan);
  StepData make_step(int64_t step) const;
  std::optional<Outcome> make_one(const StepData& data);
  Outcome fit_step(const StepData& data);
  void make_room(const Error& failure);
  Error does_not_fit(const Error& failure);
  std::vector<model::Holder> memory_holders(const memory::DeviceBytes& device);
  void report_holders();
  bool give_up_step();
  Outcome train_step(const StepData& data);
  void backward(const at::Tensor& loss, const at::Tensor& total, bool is_last);
  double learning_rate() const;
  Outcome finish_step(const StepData& data, const at::Tensor& total);
  void stop_if_long();
  void settle();
  void log(const Outcome& outcome, double loss, double norm);
  void after_step(const data::StepPlan& plan);
  void validate();
  void show();
  template <typename F>
  void with_average(F&& call);
  void save_weights(const std::string& name, int64_t epoch, uint64_t reserve);
  void remove_old_weights() const;
  void save_state(const std::string& name, int64_t epoch);
  void save_all(const std::string& name, int64_t epoch, bool is_last = false);
  void loop(progress::Step& bar);
  int leave() const;
  std::string step_name() const;

  const RunParts parts_;
  const Config& config_;
  TrainedTensors trained_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<optim::Ema> ema_;
  data::Order order_;
  std::unique_ptr<memory::Port> port_;  // for activations, where the model has none
  std::shared_ptr<memory::Offloader> offloader_;
  std::optional<run::SamplingRunner> sampling_;
  std::optional<memory::RecomputeRunner> recompute_;
  std::optional<memory::ActivationRunner> activations_;
  std::optional<ExpectingRunner> expecting_;
  Timesteps timesteps_;
  Objective objective_;
  optim::LrSchedule lr_schedule_;
  std::vector<std::unique_ptr<run::MetricsWriter>> metrics_;
  std::string fingerprint_;  // of the denoiser that the run began with
  uint64_t layers_seed_, caption_seed_;
  int64_t total_steps_ = 0;
  int64_t step_ = 0;   // finished
  int64_t epoch_ = 0;  // of the last finished one
  int64_t saved_weights_step_ = -1, saved_state_step_ = -1;
  uint64_t state_bytes_ = 0;        // of the last checkpoint, on the disk
  std::string weights_to_write_;    // of the step that is resumed; empty: they are there
  std::optional<Outcome> pending_;  // of the last step, not read back yet
  int64_t skipped_ = 0, skipped_in_row_ = 0;
  double loss_sum_ = 0.0;  // since the last line of metrics
  int64_t loss_count_ = 0;
  double waited_ = 0.0, begin_ = 0.0;  // seconds
  double left_out_ = 0.0;  // seconds of saving, validation and sample pictures since begin_
  int64_t first_step_ = 0;
  bool is_moving_ = false;  // the optimizer is at work
  // Seconds: when the step began, how long the one before took (0: there is none), and when a
  // signal was seen in a step (0: there was none).
  double step_begin_ = 0.0, step_seconds_ = 0.0, signal_seen_ = 0.0;
  bool has_reported_ = false;  // who holds the memory
  int64_t told_bytes_ = -1;    // of activations, in the largest plan that was told
  std::string note_;           // behind the progress: "loss 0.1234 lr 1.0e-04 …"
};

}  // namespace atelier::train
