// Whether a run may have its folder, and whether it can go on from a saved state.
#pragma once

#include "host/model/model_loader.h"
#include "host/order/training.h"
#include "host/parameters/selection.h"
#include "host/report/problems.h"
#include "host/run/run_folder.h"

namespace atelier::train {

// An output folder belongs to one run: one that holds files of another run, or a model, becomes a
// problem. A run that was started once more before its first save has the folder still.
void check_output_folder(const order::Training& config, report::Problems& problems);

// Samples that are to be encoded need a folder that can be written into.
void check_cache_folder(const order::Training& config, report::Problems& problems);

// The fingerprints of the denoisers that the run computes with, which a resumed run must have, too.
std::string fingerprint_of(const model::LoadedModel& model, const parameters::Selection& selection);

// What a resumed run cannot change, and was changed, becomes a problem that names the flag and both
// values: model, trained tensors, optimizer, average. Reads headers only.
void check_resume(const run::SavedState& saved_state, model::LoadedModel& model,
                  const parameters::Selection& selection, const order::Training& config,
                  report::Problems& problems);

}  // namespace atelier::train
