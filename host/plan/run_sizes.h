// What a run is, in numbers: found from headers and dry runs, before a weight is read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/generate/session.h"
#include "host/model/model_loader.h"
#include "host/order/training.h"
#include "host/parameters/selection.h"
#include "host/plan/rank_sizes.h"
#include "memory/activation_budget.h"
#include "memory/device_profile.h"
#include "memory/planner.h"

namespace atelier::plan {

// Batches of an optimizer step that one rank makes.
int64_t batches_of_rank(const order::Training& config, const RankMode& mode);

// What is given before anything is planned.
struct PlanBasis {
  memory::DeviceProfile profile;
  at::DeviceType like = at::kCPU;   // kind of the device that the run is on
  bool counts_scratch = true;       // see DryModel
  model::Placement placement = {};  // what the user said of it
  // What is sent away stays away, all but the blocks that the user keeps: the limit is not theirs.
  bool keeps_places = false;
  // Storages that may be chosen beside plain, for components that are not in `stored`: those are as
  // the user said.
  std::vector<weights::Storage> allowed_storages = {};
  weights::StorageByComponent stored = {};
};

struct GenerationBasis {
  const order::Generation* order;  // not null, and outlives this
  generate::Request request = {};  // the largest one, and the one that stands for all
  int64_t images = 1;              // of the run
  int64_t lora_bytes = 0;
  generate::Layout layout = {};  // see unplanned_layout()
};

struct TrainingBasis {
  const order::Training* config;  // not null, as the selection; both outlive this
  const parameters::Selection* selection;
  MediaTarget target = {1, 1024, 1024};  // of the largest sample
  // What the largest sample reads beside the target, images without values, and the longest text;
  // empty: not known.
  Inputs inputs = {};
  // What it has of a cache beside the target's latents, without values; empty: not known.
  Conditioning encoded = {};
  int64_t samples = 1;
  int64_t distillation_steps = 1;                 // the most of a sample
  std::span<const order::Settings> prompts = {};  // of images on the way, which outlive this
  bool on_host = false;  // trained tensors are moved on the host, see OffloadSettings::optimizer
};

// A run with what the planner's choices mean for it.
struct SizedRun {
  memory::PlannedRun run;
  // By strategy of the denoiser's phase, "denoise" or "train", what carries it out.
  std::vector<generate::Layout> layouts;
  std::vector<memory::ActivationBudget> activations;
  int64_t batch_size = 1;
  // What one more sample in a batch takes, by strategy of that phase.
  std::vector<int64_t> more_bytes;
  // What a batch may grow by before that counts, by strategy; empty: nothing.
  std::vector<int64_t> slack_bytes;
  std::string main_phase;
  bool on_host = false;                 // as TrainingBasis has it
  std::vector<StepExchange> exchanges;  // of a training on several ranks, by strategy
};

// Throws what the model throws when it cannot run without values.
SizedRun size_generation(model::LoadedModel& model, const GenerationBasis& generation,
                         const PlanBasis& basis);
SizedRun size_training(model::LoadedModel& model, const TrainingBasis& training,
                       const PlanBasis& basis);
// Sizes on several ranks, for each mode; their `on_host` stands for that of `training`.
std::vector<SizedRun> size_training(model::LoadedModel& model, const TrainingBasis& training,
                                    const PlanBasis& basis, const memory::LinkProfile& links,
                                    std::span<const RankMode> modes);

// A run of the components of a model, in each storage that may be chosen, without phases.
// `prepares_levels`: what only noise levels reach is drawn once.
memory::PlannedRun size_components(model::LoadedModel& model, const PlanBasis& basis,
                                   bool prepares_levels);

}  // namespace atelier::plan
