// Whether the rows of a model's denoisers can be shared out, and how.
#pragma once

#include <cstdint>

#include "atelier/ops/attention.h"
#include "atelier/shared_rows.h"

#include "host/model/model_loader.h"
#include "host/report/problems.h"

namespace atelier::model {

// What one of the denoisers says of its rows; null where those of another one are not shared out.
const SharesRows* shared_rows_of(LoadedModel& model);

// Among `ranks` of --sequence_parallel, with --attention as the user said it. Reads no weights.
void check_sequence(LoadedModel& model, int64_t ranks, ops::AttentionBackend attention,
                    report::Problems& problems);

}  // namespace atelier::model
