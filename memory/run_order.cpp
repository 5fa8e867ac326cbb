#include "memory/run_order.h"

#include <algorithm>

namespace atelier::memory {

namespace {

constexpr size_t kLong = 4, kShort = 2;  // runs that are looked back at
constexpr size_t kMostLearnt = 100'000;  // of an order that never repeats
constexpr int64_t kStepsPerBlock = 8;    // a block may run often before the next one does

std::vector<int64_t> tail(const std::vector<int64_t>& runs, size_t count) {
  return {runs.end() - static_cast<std::ptrdiff_t>(count), runs.end()};
}

}  // namespace

void RunOrder::add(int64_t block) {
  if (learnt_.size() > kMostLearnt) learnt_.clear();
  for (const size_t count : {kLong, kShort}) {
    if (last_.size() >= count) learnt_[tail(last_, count)] = block;
  }
  last_.push_back(block);
  if (last_.size() > kLong) last_.erase(last_.begin());
}

int64_t RunOrder::after(const Runs& runs) const {
  for (const size_t count : {kLong, kShort}) {
    if (runs.size() < count) continue;
    const auto found = learnt_.find(tail(runs, count));
    if (found != learnt_.end()) return found->second;
  }
  if (runs.empty()) return 0;
  const bool is_backwards = runs.size() > 1 && runs.back() == runs[runs.size() - 2] - 1;
  return (runs.back() + (is_backwards ? blocks_ - 1 : 1)) % blocks_;
}

std::vector<int64_t> RunOrder::next(int64_t count) const {
  const auto wanted = static_cast<size_t>(count);
  Runs runs = last_, result;
  for (int64_t step = 0; step < kStepsPerBlock * (count + 1) && result.size() < wanted; ++step) {
    const int64_t block = after(runs);
    runs.push_back(block);
    if (runs.size() > kLong) runs.erase(runs.begin());
    const bool is_running = !last_.empty() && block == last_.back();
    if (!is_running && std::find(result.begin(), result.end(), block) == result.end())
      result.push_back(block);
  }
  return result;
}

}  // namespace atelier::memory
