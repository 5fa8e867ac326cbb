// A training run, before its first weight is read: checked as a whole, and planned.
#pragma once

#include <optional>
#include <string>

#include "host/plan/plan_run.h"
#include "host/plan/rank_plan.h"
#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/train/training_run.h"

namespace atelier::plan {

struct PreparedTraining {
  train::PreparedRun run;
  std::optional<Planned> planned = {};
  std::optional<PlannedRanks> ranks = {};
  std::string unplanned = {};  // why there is no plan; empty: none is needed
};

// Opens model, datasets, prompts and checkpoints of an order whose family is known, reads no
// weights, and plans what the run takes.
// The model is placed as planned and the user told. Throws one error with all that is wrong,
// `problems` included; throws as plan_training().
PreparedTraining prepare_training(order::Training order, progress::Progress& progress,
                                  report::Problems& problems);

// Does so for the plan alone, which nothing follows. `ranks`: are planned for in the place of one
// process, where there are any.
PreparedTraining prepare_plan(order::Training order, const RanksAsked& ranks,
                              progress::Progress& progress, report::Problems& problems);

// Prepares encoding samples ahead of training, which nothing is planned for.
train::PreparedRun prepare_encoding(order::Training order, progress::Progress& progress,
                                    report::Problems& problems);

// Decides where trained weights rest, with the model placed as `run` says. Reads no values.
void place_trained(train::PreparedRun& run, report::Problems& problems);

}  // namespace atelier::plan
