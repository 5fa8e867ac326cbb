// Whether the rows of a model's denoisers can be shared out.
#pragma once

#include <cstdint>

#include "host/model/model_loader.h"
#include "host/report/problems.h"

namespace atelier::model {

// Among `ranks` of --sequence_parallel. Reads no weights.
void check_sequence(LoadedModel& model, int64_t ranks, report::Problems& problems);

}  // namespace atelier::model
