// The plan of a whole command: what was asked for goes in, what fits comes out.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atelier/error.h"

#include "host/generate/session.h"
#include "host/model/model_loader.h"
#include "host/order/generation.h"
#include "host/plan/planning.h"
#include "host/plan/report.h"
#include "host/progress/progress.h"
#include "host/train/training_run.h"

namespace atelier::plan {

struct Outcome {
  std::optional<Planned> planned = {};
  std::optional<Error> unplanned = {};  // why there is no plan; nullopt: none is needed
};

// Plans where there is a limit: of a GPU, a simulated device, or what the user set. Nothing is
// planned where there is none, nor where the device set it and the model cannot run without values.
// Throws Error{kOutOfMemory} when nothing fits. Nothing of `model` is loaded. `order` is what it
// was opened for; `jobs`, at least one, are those that are known, with what they left to the model.
Outcome plan_generation(model::LoadedModel& model, const order::Generation& order,
                        std::span<const order::Job> jobs);
// Plans so for a process of a training.
Outcome plan_training(const train::PreparedRun& run);

// The limits that a training is planned within, and the choices that its user has made.
PlanTarget training_target(const train::PreparedRun& run);

// How a training is carried out: as planned where the user said nothing. `said`: all that the order
// says, see unplanned_layout().
parameters::Layout planned_layout(parameters::Layout said, const order::Training& order,
                                  const Planned& planned);
// How an order is carried out. `planned`: nullopt where nothing was planned.
generate::Layout layout_of(const order::Generation& order, const model::LoadedModel& model,
                           const std::optional<Planned>& planned);

// What LibTorch's allocator may take of a GPU of which a run may take `vram` bytes in all. Throws
// Error{kInvalidArgument} when nothing is left for it.
int64_t allocator_limit(int64_t vram);
// Limits a GPU's allocator by a size of --vram; does nothing on other devices.
void apply_limits(const MemoryLimits& limits, at::Device device);

// Places the model of an order, or of a training with its activations and optimizer, as it was
// planned, and tells what that means; where nothing was, `unchecked` of its sizes.
void follow_plan(const Outcome& outcome, const order::Generation& order, model::LoadedModel& model,
                 const std::string& unchecked, progress::Progress& progress);
void follow_plan(const Outcome& outcome, train::PreparedRun& run, progress::Progress& progress);
// Decides where trained weights rest, with the model placed as `run` says. Reads no values.
void place_trained(train::PreparedRun& run);

// Tells, when the run is done, what was predicted and what was measured, where that can be.
void note_measured(const Planned& planned, model::LoadedModel& model, progress::Progress& progress);

}  // namespace atelier::plan
