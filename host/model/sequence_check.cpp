#include "host/model/sequence_check.h"

#include <string>

namespace atelier::model {
namespace {

const SharesRows* rows_of(LoadedModel& model, const RangedDenoiser& denoiser) {
  return dynamic_cast<const SharesRows*>(&model.model().component(denoiser.name()));
}

}  // namespace

const SharesRows* shared_rows_of(LoadedModel& model) {
  const SharesRows* rows = nullptr;
  for (const RangedDenoiser& denoiser : model.stages().denoisers) {
    rows = rows_of(model, denoiser);
    if (rows == nullptr) return nullptr;
  }
  return rows;
}

void check_sequence(LoadedModel& model, int64_t ranks, report::Problems& problems) {
  if (ranks == 1) return;
  for (const RangedDenoiser& denoiser : model.stages().denoisers) {
    if (rows_of(model, denoiser) == nullptr)
      problems.add("--sequence_parallel: the rows of " + denoiser.name() +
                       " are not shared out in this family",
                   "leave it out");
  }
}

}  // namespace atelier::model
