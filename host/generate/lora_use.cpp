#include "host/generate/lora_use.h"

#include <algorithm>

namespace atelier::generate {
namespace {

bool are_equal(std::span<const Loras> sets) {
  return std::ranges::all_of(sets, [&](const Loras& set) { return set == sets.front(); });
}

}  // namespace

void LoraUse::use(const Loras& set, bool anew) {
  if (loras_ == nullptr || (!anew && in_use_ == set)) return;
  in_use_.reset();
  loras_->use(set);
  in_use_ = set;
}

const ops::SampleStrengths* LoraUse::use_each(std::span<const Trajectory* const> of) {
  std::vector<Loras> sets;
  for (const Trajectory* const one : of) sets.push_back(one->request().loras);
  strengths_.reset();
  if (are_equal(sets)) {
    use(sets.front());
  } else {
    in_use_.reset();
    strengths_ = loras_->use_each(sets);
  }
  return strengths_ ? &*strengths_ : nullptr;
}

bool LoraUse::can_share(const std::vector<Loras>& sets) const {
  if (are_equal(sets)) return true;
  return may_share_ && loras_ != nullptr && loras_->can_share(sets);
}

}  // namespace atelier::generate
