#include "host/parameters/arriving_values.h"

#include <algorithm>
#include <utility>

namespace atelier::parameters {

ArrivingValues::ArrivingValues(ArrivalOrder order, Bring bring)
    : order_(std::move(order)),
      bring_(std::move(bring)),
      begun_(order_.buckets.size()),
      arrived_(order_.buckets.size()) {
  for (const auto& [block, end] : order_.ends) stops_.push_back(end);
  std::ranges::sort(stops_);
}

void ArrivingValues::open(const std::vector<bool>& buckets) {
  complete();
  comes_ = buckets;
  begun_ = arrived_ = 0;
  if (!stops_.empty()) begin_until(stops_.front());
}

void ArrivingValues::await(const Block* block) {
  if (arrived_ == order_.buckets.size()) return;
  const auto found = order_.ends.find(block);
  if (found == order_.ends.end()) return;
  const auto next = std::ranges::upper_bound(stops_, found->second);
  begin_until(next == stops_.end() ? found->second : *next);
  await_until(found->second);
}

// A few at a time, so that not all of them are there twice.
void ArrivingValues::complete() {
  while (arrived_ < order_.buckets.size()) {
    begin_until(std::min(order_.buckets.size(), arrived_ + kBucketsUnderWay));
    await_until(arrived_ + 1);
  }
}

void ArrivingValues::begin_until(size_t end) {
  for (; begun_ < end; ++begun_) {
    const size_t bucket = order_.buckets[begun_];
    under_way_.push_back(comes_[bucket] ? bring_(bucket) : [] {});
  }
}

void ArrivingValues::await_until(size_t end) {
  while (arrived_ < end) {
    const std::function<void()> arrive = std::move(under_way_.front());
    under_way_.pop_front();
    ++arrived_;
    arrive();  // which may throw
  }
}

}  // namespace atelier::parameters
