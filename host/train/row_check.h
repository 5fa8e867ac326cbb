// What the rows of a dataset are checked for that only the model and the task know.
#pragma once

#include "host/data/dataset.h"
#include "host/generate/text_lengths.h"
#include "host/model/model_loader.h"
#include "host/order/training.h"

namespace atelier::train {

// For Dataset::open: texts that are too long, what is left of a row whose caption is dropped as
// well, inputs without one value for each file of their control, and, with `is_trained_on`, columns
// that the task needs. `lengths` is not asked when no text is encoded. All that is given outlives
// the check.
data::RowCheck row_check(const order::Training& config, const model::LoadedModel& model,
                         generate::TextLengths& lengths, bool is_trained_on);

}  // namespace atelier::train
