#include "host/parameters/arriving_values.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "host/distributed/gradients.h"

namespace atelier::parameters {

ArrivingValues::ArrivingValues(const std::vector<const Block*>& blocks,
                               const std::vector<std::vector<const Block*>>& needs, Bring bring)
    : bring_(std::move(bring)), order_(needs.size()), begun_(needs.size()), arrived_(needs.size()) {
  std::map<const Block*, size_t> places = {{nullptr, 0}};
  for (const Block* block : blocks) places.emplace(block, places.size());
  std::vector<size_t> first(needs.size(), blocks.size() + 1);  // place of who needs it first
  for (size_t bucket = 0; bucket < needs.size(); ++bucket) {
    for (const Block* block : needs[bucket])
      first[bucket] = std::min(first[bucket], places.at(block));
  }
  std::iota(order_.begin(), order_.end(), size_t{0});
  // Later buckets have earlier tensors.
  std::ranges::reverse(order_);
  std::ranges::stable_sort(order_, {}, [&](size_t bucket) { return first[bucket]; });
  for (size_t place = 0; place < order_.size(); ++place) {
    for (const Block* block : needs[order_[place]]) ends_[block] = place + 1;
  }
  for (const auto& [block, end] : ends_) stops_.push_back(end);
  std::ranges::sort(stops_);
}

void ArrivingValues::open(const std::vector<bool>& buckets) {
  complete();
  comes_ = buckets;
  begun_ = arrived_ = 0;
  if (!stops_.empty()) begin_until(stops_.front());
}

void ArrivingValues::await(const Block* block) {
  if (arrived_ == order_.size()) return;
  const auto found = ends_.find(block);
  if (found == ends_.end()) return;
  const auto next = std::ranges::upper_bound(stops_, found->second);
  begin_until(next == stops_.end() ? found->second : *next);
  await_until(found->second);
}

// A few at a time, so that not all of them are there twice.
void ArrivingValues::complete() {
  while (arrived_ < order_.size()) {
    begin_until(std::min(order_.size(), arrived_ + distributed::kBucketsUnderWay));
    await_until(arrived_ + 1);
  }
}

void ArrivingValues::begin_until(size_t end) {
  for (; begun_ < end; ++begun_) {
    const size_t bucket = order_[begun_];
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
