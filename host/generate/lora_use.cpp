#include "host/generate/lora_use.h"

#include <algorithm>

namespace atelier::generate {
namespace {

bool are_equal(std::span<const Loras> sets) {
  return std::ranges::all_of(sets, [&](const Loras& set) { return set == sets.front(); });
}

}  // namespace

void LoraUse::use(const Loras& set, bool anew) {
  if (loras_ == nullptr || (!anew && !is_stale_ && in_use_ == set)) return;
  in_use_.reset();
  in_use_by_sample_.clear();
  loras_->use(set);
  changes_others_ = loras_->changes_others(set);
  in_use_ = set;
  is_stale_ = false;
}

bool LoraUse::may_stay(const Loras& set) const {
  const bool is_known = in_use_ || !in_use_by_sample_.empty();
  return is_known && !changes_others_ && !loras_->changes_others(set);
}

void LoraUse::use_beside(const Loras& set, bool anew) {
  if (loras_ == nullptr || (!anew && in_use_ == set)) return;
  if (!may_stay(set)) return use(set, anew);
  if (!anew) return;
  loras_->read(set);
  is_stale_ = true;  // the next use takes what was read
}

const ops::SampleStrengths* LoraUse::use_each(std::span<const Trajectory* const> of) {
  std::vector<Loras> sets;
  for (const Trajectory* const one : of) sets.push_back(one->request().loras);
  if (are_equal(sets)) {
    strengths_.reset();
    use(sets.front());
  } else if (is_stale_ || sets != in_use_by_sample_) {
    strengths_.reset();
    in_use_.reset();
    in_use_by_sample_.clear();
    strengths_ = loras_->use_each(sets);
    changes_others_ =
        std::ranges::any_of(sets, [&](const Loras& set) { return loras_->changes_others(set); });
    in_use_by_sample_ = std::move(sets);
    is_stale_ = false;
  }
  return strengths_ ? &*strengths_ : nullptr;
}

bool LoraUse::can_share(const std::vector<Loras>& sets) const {
  if (are_equal(sets)) return true;
  return may_share_ && loras_ != nullptr && loras_->can_share(sets);
}

}  // namespace atelier::generate
