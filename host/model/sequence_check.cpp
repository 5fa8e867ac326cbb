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

void check_sequence(LoadedModel& model, int64_t ranks, ops::AttentionBackend attention,
                    report::Problems& problems) {
  if (ranks == 1) return;
  for (const RangedDenoiser& denoiser : model.stages().denoisers) {
    const SharesRows* const rows = rows_of(model, denoiser);
    if (rows == nullptr) {
      problems.add("--sequence_parallel: the rows of " + denoiser.name() +
                       " are not shared out in this family",
                   "leave it out");
    } else if (attention == ops::AttentionBackend::kCudnn && rows->key_heads() % ranks != 0) {
      // Keys go around the ranks, which needs log-sum-exps that merge.
      problems.add("--attention cudnn: " + std::to_string(ranks) +
                       " processes of --sequence_parallel do not divide the " +
                       std::to_string(rows->key_heads()) + " key heads of " + denoiser.name(),
                   "leave --attention out, or use a number that divides them",
                   ErrorCode::kUnsupported);
    }
  }
}

}  // namespace atelier::model
