// What a run saves and is resumed from.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "atelier/host/sequence_scope.h"

#include "host/distributed/group.h"
#include "host/model/model_loader.h"
#include "host/optim/ema.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/selection.h"
#include "host/parameters/trained.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"
#include "host/run/run_folder.h"
#include "host/samples/samples.h"
#include "host/train/agreement.h"
#include "host/train/preview.h"

namespace atelier::train {

// What a run works on; everything outlives the trainer.
struct RunContext {
  model::LoadedModel& model;
  const order::Training& config;
  parameters::Layout layout;
  const samples::Samples& samples;
  const samples::Samples* validation;  // null: none
  Preview* preview;                    // null: no images during training
  run::RunFolder* folder;              // null: another rank writes
  progress::Progress& progress;
  run::MemoryTimeline* timeline = nullptr;  // of the first steps; null: none
  distributed::Group* group = nullptr;      // of the run's processes; null: this one is alone
  // Ranks that divided blocks come from: they run the same blocks in the same order. Null: blocks
  // are whole.
  distributed::Group* blocks = nullptr;
  SequenceGroup* sequence = nullptr;  // of those that compute a batch with this one; or null

  bool in_lockstep() const { return blocks != nullptr; }
  // Others wait in the middle of a step for what this process has of it.
  bool computes_with_others() const { return in_lockstep() || sequence != nullptr; }
};

// The name of the weights that belong to `saved_state` and do not lie in the run's folder,
// "step-500": the run was stopped before they were written. Empty: they are there.
std::string find_weights_to_write(const run::SavedState& saved_state,
                                  const parameters::Selection& selection,
                                  const order::Training& config);

// Trained tensors, optimizer, averages and counters; and their files. Not thread-safe.
class RunState {
 public:
  // The denoiser and every component of `selection` are loaded.
  RunState(const RunContext& context, parameters::Selection selection);

  parameters::TrainedTensors& trained() { return trained_; }
  const parameters::TrainedTensors& trained() const { return trained_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  RunCounters& counters() { return counters_; }
  const RunCounters& counters() const { return counters_; }
  std::string step_name() const { return "step-" + std::to_string(counters_.step); }

  // Takes everything from `saved_state`, and warns of what has changed since. All processes come
  // here; where one fails, or comes with an older state, the others throw Error{kEnvironment}, or
  // what it throws.
  void resume(const run::SavedState& saved_state);
  // The weights that the saved state says were to be written; empty: they are there.
  const std::string& weights_to_write() const { return weights_to_write_; }

  // The average follows the trained tensors. After each step read_average() sends them on their
  // way, where they are on a device; update_average() comes when the step is known to have moved
  // them, and leave_to_optimizer() before the next one does. Where they are on the host, the
  // average is updated before the next step.
  void read_average();
  void leave_to_optimizer();
  // `denoiser`: see StepResult.
  void update_average(std::string_view denoiser = {});
  bool reads_average_at_once() const { return ema_ && ema_device_ == nullptr; }
  // Calls `call` while the averages, where there are any, stand in for the trained tensors, and
  // nothing is dropped out: the model as it is looked at and saved. All processes come here where
  // shows_together().
  template <typename F>
  void with_average(F&& call) {
    show_average();
    try {
      call();
    } catch (...) {
      hide_average();
      throw;
    }
    hide_average();
  }
  // Whether each process has a part of the averages.
  bool shows_together() const { return ema_ && trained_.placement().is_shared(); }

  // Saves what is not saved yet of this step: the state, and weights as files of `name`. A save on
  // the way that fails is told, and the next one tries again; the last one of a run (`is_last`)
  // throws Error{kEnvironment}. All processes come here; each writes what it alone has.
  void save(const std::string& name, bool is_last = false);

 private:
  void agree_on(const run::SavedState& saved_state) const;
  void swap_average();
  void show_average();
  void hide_average();
  void save_weights(const std::string& name, uint64_t reserve);
  void save_state(const std::string& name);
  run::SavedStateFiles files_to_save() const;
  // Ranks that have parts of the state; null: this one has all.
  distributed::Group* sharing() const;

  const RunContext context_;
  parameters::TrainedTensors trained_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<memory::TransferDevice> own_device_;  // of a model that nothing of is streamed
  memory::TransferDevice* ema_device_ = nullptr;        // null: parameters are on the host
  std::optional<optim::Ema> ema_;
  std::string fingerprint_;  // of the denoisers that the run began with
  RunCounters counters_;
  int64_t saved_weights_step_ = -1, saved_state_step_ = -1;
  uint64_t state_bytes_ = 0;  // of the last saved state, on the disk
  std::string weights_to_write_;
};

}  // namespace atelier::train
