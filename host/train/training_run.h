// A training run from its checked parts to the trained model.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/data/dataset.h"
#include "host/distributed/group.h"
#include "host/lora/registry.h"
#include "host/model/model_loader.h"
#include "host/order/settings.h"
#include "host/order/training.h"
#include "host/parameters/layout.h"
#include "host/parameters/selection.h"
#include "host/parameters/starting_weights.h"
#include "host/progress/progress.h"
#include "host/run/memory_timeline.h"
#include "host/run/run_folder.h"
#include "host/samples/samples.h"

namespace atelier::train {

// Everything that is known before a weight is read.
struct PreparedRun {
  order::Training config;
  parameters::Layout layout = {};  // what it says, or what was planned
  std::unique_ptr<model::LoadedModel> model = {};
  parameters::Selection selection = {};
  // Null: samples come from the cache alone; there is no validation.
  std::shared_ptr<const data::Dataset> dataset = {}, validation = {};
  std::vector<order::Settings> prompts = {};    // of images on the way
  std::optional<run::SavedState> resumed = {};  // nullopt: from the beginning
  std::optional<parameters::StartingWeights> starting_weights = {};
  std::unique_ptr<lora::Registry> preset = {};  // of --preset_lora_path; null: none
  std::string unchecked = {};  // why it is not known that its sizes can be; empty: it is
};

struct RunEnd {
  int exit_code = 0;
  // False where training did not begin: samples were encoded only, a signal came before, or the run
  // was finished already.
  bool has_trained = false;
};

// Encodes what is missing, loads and trains. `timeline` may be null, and `group` is where this
// process is alone: otherwise all encode, and rank 0 writes. Throws what the steps throw; signals
// end it with their exit code, see run::StopSignals, of which one lives.
RunEnd run_training(PreparedRun& run, run::MemoryTimeline* timeline, progress::Progress& progress,
                    distributed::Group* group = nullptr);

// Encodes what `samples`, of open_samples(), lack; the processes of `group` share the work, and
// each has the samples as they are then. `group`: null where this process is alone. Returns false
// when a signal to one of them ended it.
bool fill_samples(PreparedRun& run, samples::Samples& samples,
                  const std::shared_ptr<const data::Dataset>& dataset, const std::string& folder,
                  progress::Progress& progress, distributed::Group* group);

// The samples of `dataset`, or of the cache in `folder` when it is null.
samples::Samples open_samples(const PreparedRun& run,
                              const std::shared_ptr<const data::Dataset>& dataset,
                              const std::string& folder);

}  // namespace atelier::train
