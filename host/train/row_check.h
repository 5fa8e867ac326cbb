// What the rows of a dataset are checked for that only the model and the task know.
#pragma once

#include "host/data/dataset.h"
#include "host/generate/text_lengths.h"
#include "host/train/config.h"

namespace atelier::train {

// Whether this run encodes texts, or takes all of them from the cache.
bool encodes_texts(const Config& config, const ModelFamily& family);

// For Dataset::open: texts that are too long, what is left of a row whose caption is dropped as
// well, and, with `is_trained_on`, columns that the task needs. `lengths` is not asked when no text
// is encoded; it and `config` outlive the check.
data::RowCheck row_check(const Config& config, const ModelFamily& family,
                         generate::TextLengths& lengths, bool is_trained_on);

}  // namespace atelier::train
