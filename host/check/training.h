// A training, before its first weight is read: opened, and checked as a whole.
#pragma once

#include <optional>
#include <string>

#include "host/progress/progress.h"
#include "host/report/problems.h"
#include "host/train/training_run.h"

namespace atelier::check {

// Opens model, datasets, prompts and checkpoints of an order whose family is known, and reads no
// weights. The order is fitted to its `ranks`, and its output folder is the run's own. Throws one
// error with all that is wrong, `problems` included.
train::PreparedRun open_training(order::Training order, progress::Progress& progress,
                                 report::Problems& problems);

// Does so for a training that one process plans, into whatever folder. `guards_sizes`: what this
// process can never hold is wrong, too.
train::PreparedRun open_planned(order::Training order, bool guards_sizes,
                                progress::Progress& progress, report::Problems& problems);

// Does so for encoding samples ahead of training, which nothing is planned for.
train::PreparedRun open_encoding(order::Training order, progress::Progress& progress,
                                 report::Problems& problems);

}  // namespace atelier::check
