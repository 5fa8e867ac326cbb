// Additions to a weight that are made in float32 when it is drawn.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "atelier/host/weight_state.h"

#include "host/lora/difference.h"

namespace atelier::lora {

// A part of a difference, added to a part of a weight.
struct Addition {
  std::shared_ptr<const Difference> difference;
  double strength = 1.0;
  // -1: the whole of both; else rows (0) or columns (1), `length` of them.
  int axis = -1;
  int64_t difference_start = 0, weight_start = 0, length = 0;
  const void* owner = nullptr;  // who put it there

  bool operator==(const Addition&) const = default;
};

// W + the sum over additions of strength * D, where D is a difference's value() or, for DoRA,
// magnitude * (W + value()) / |W + value()| - W. W is always the base's own weight, so that neither
// order nor other additions change what one of them adds. The sum is made in float32 and rounded
// once to the base's dtype. It is made at the first draw and stays as long as this store, or,
// unless `keeps_sum`, is made at each draw. Safe to use from several threads.
class AddedWeight final : public WeightStore {
 public:
  AddedWeight(std::shared_ptr<const WeightStore> base, std::vector<Addition> additions,
              bool keeps_sum = true);

  at::Tensor draw() const override;
  const AddedWeight* added() const override { return this; }

  const std::shared_ptr<const WeightStore>& base() const { return base_; }
  const std::vector<Addition>& additions() const { return additions_; }
  bool keeps_sum() const { return keeps_sum_; }
  // The bytes of the sum that is kept; 0 before the first draw.
  int64_t bytes() const;

 private:
  at::Tensor sum() const;

  std::shared_ptr<const WeightStore> base_;
  std::vector<Addition> additions_;
  bool keeps_sum_;
  mutable std::mutex mutex_;
  mutable at::Tensor sum_;
};

// Makes `additions` those of `owner` at `weight`, behind those of others; without any at all the
// base's store is put back. Does nothing when the weight is not loaded or nothing changes.
// `keeps_sum` as in AddedWeight: a weight that comes and goes must not leave its sum behind. Throws
// Error{kUnsupported} when there is something to add and the weight is being trained.
void set_additions(Weight& weight, const void* owner, std::vector<Addition> additions,
                   bool keeps_sum = true);

// Bytes of the sum that `weight` keeps for its additions.
int64_t added_bytes(const Weight& weight);

}  // namespace atelier::lora
