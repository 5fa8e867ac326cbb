// Values that come from other processes while the blocks that need them run.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "host/parameters/exchange_plan.h"

namespace atelier::parameters {

// Buckets of values come one behind the other, in their order of arrival. A block's are on their
// way while the one before runs. Not thread-safe.
class ArrivingValues {
 public:
  // Begins to bring a bucket. What is returned waits until it is there, and puts it in its place.
  using Bring = std::function<std::function<void()>(size_t bucket)>;

  ArrivingValues(ArrivalOrder order, Bring bring);

  // Values of `buckets`, none of which is on its way, come from now on.
  void open(const std::vector<bool>& buckets);
  // Returns when what the block needs has come; null: what is needed outside of blocks.
  void await(const Block* block);
  // Returns when all have come.
  void complete();

 private:
  void begin_until(size_t end);
  void await_until(size_t end);

  const ArrivalOrder order_;
  const Bring bring_;
  std::vector<size_t> stops_;                    // ends of order_, the lowest first
  std::vector<bool> comes_;                      // by bucket
  std::deque<std::function<void()>> under_way_;  // those from arrived_ to begun_
  size_t begun_ = 0, arrived_ = 0;               // places in order_.buckets
};

}  // namespace atelier::parameters
