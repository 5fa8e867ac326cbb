// What the rows of a dataset are checked for that only the model and the task know.
#pragma once

#include <span>

#include "host/data/dataset.h"
#include "host/generate/text_lengths.h"
#include "host/order/training.h"

namespace atelier::train {

// For Dataset::open: texts that are too long, what is left of a row whose caption is dropped as
// well, and, with `is_trained_on`, columns that the task needs. `lengths` is not asked when no text
// is encoded; it, `config` and `family` outlive the check. `stages`: of the model.
data::RowCheck row_check(const order::Training& config, const ModelFamily& family,
                         std::span<const EncodeStage> stages, generate::TextLengths& lengths,
                         bool is_trained_on);

}  // namespace atelier::train
