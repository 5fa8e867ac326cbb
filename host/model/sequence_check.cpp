#include "host/model/sequence_check.h"

#include <string>
#include <vector>

#include <c10/util/StringUtil.h>

#include "atelier/shared_rows.h"

namespace atelier::model {
namespace {

std::string divisors_of(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return c10::Join(", ", divisors);
}

}  // namespace

void check_sequence(LoadedModel& model, int64_t ranks, report::Problems& problems) {
  if (ranks == 1) return;
  const std::string flag = "--sequence_parallel: ";
  for (const RangedDenoiser& denoiser : model.stages().denoisers) {
    const auto* const rows =
        dynamic_cast<const SharesRows*>(&model.model().component(denoiser.name()));
    if (rows == nullptr) {
      problems.add(flag + "the rows of " + denoiser.name() + " are not shared out in this family",
                   "leave it out");
    } else if (rows->key_heads() % ranks != 0) {
      problems.add(flag + std::to_string(ranks) + " processes do not divide the " +
                       std::to_string(rows->key_heads()) + " key heads of " + denoiser.name(),
                   "use one of " + divisors_of(rows->key_heads()));
    }
  }
}

}  // namespace atelier::model
