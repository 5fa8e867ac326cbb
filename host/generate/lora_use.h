// Which LoRAs the model has while an engine works for one request or for several.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "host/generate/request_loras.h"
#include "host/generate/trajectory.h"

namespace atelier::generate {

// Not thread-safe.
class LoraUse {
 public:
  // `loras` outlives it; null: no request has any.
  explicit LoraUse(RequestLoras* loras) : loras_(loras) {}

  // Does nothing where that set is in use. `anew`: its files may have changed.
  void use(const Loras& set, bool anew = false);
  // Before other components than denoisers work for a request with `set`: uses it, unless neither
  // it nor what is in use changes such a component.
  void use_beside(const Loras& set, bool anew = false);
  // Before calls for `of`: how much each LoRA counts for each of them; null where all have one set,
  // which is in use then. Valid until the next use. The sets of the call before are not looked at
  // anew.
  const ops::SampleStrengths* use_each(std::span<const Trajectory* const> of);
  // Whether `sets` can be in one call.
  bool can_share(const std::vector<Loras>& sets) const;
  // It was found out that they cannot, unless they are the same.
  void share_no_more() { may_share_ = false; }

 private:
  bool may_stay(const Loras& set) const;

  RequestLoras* loras_;
  std::optional<Loras> in_use_;          // of all samples; nullopt: it is not known
  std::vector<Loras> in_use_by_sample_;  // of each, where in_use_ is of none; empty: not known
  // Whether what is in use changes more than denoisers: as it was when it came into use, since its
  // files may be others by now, or gone.
  bool changes_others_ = false;
  bool is_stale_ = false;  // files of what is in use may have changed
  std::optional<ops::SampleStrengths> strengths_;
  bool may_share_ = true;
};

}  // namespace atelier::generate
