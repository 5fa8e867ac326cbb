// A training run, before its first weight is read: checked as a whole, and planned.
#pragma once

#include <optional>
#include <string>

#include "atelier/model_family.h"

#include "host/plan/plan_run.h"
#include "host/plan/rank_plan.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/train/training_run.h"

namespace atelier::plan {

struct TrainingRequest {
  const ModelFamily& family;
  train::Config config;  // that parse_config() has checked
  bool is_planned_only = false;
  std::string device_profile = {};  // see MemoryLimits
  RanksAsked ranks = {};            // plans for these in place of one process
  int processes = 1;                // that train together; this one plans for itself
  int shard_ranks = 1;              // of these, see train::shard_ranks()
  int machine_ranks = 1;            // of the processes, those on this machine
};

struct PreparedTraining {
  train::PreparedRun run;
  std::optional<Planned> planned = {};
  std::optional<PlannedRanks> ranks = {};
  std::string unplanned = {};  // why there is no plan; empty: none is needed
};

// Opens model, datasets, prompts and checkpoints, reads no weights, and plans what the run takes.
// Unless it is planned only, the model is placed as planned and the user told. Throws one error
// with all that is wrong, `problems` included; throws as plan_training().
PreparedTraining prepare_training(TrainingRequest request, progress::Progress& progress,
                                  report::Problems& problems);

// Prepares encoding samples ahead of training, which nothing is planned for.
train::PreparedRun prepare_encoding(TrainingRequest request, progress::Progress& progress,
                                    report::Problems& problems);

// Decides where trained weights rest, with the model placed as `run` says. Reads no values.
void place_trained(train::PreparedRun& run, report::Problems& problems);

}  // namespace atelier::plan
