#include "host/distributed/pace.h"

#include <algorithm>
#include <vector>

namespace atelier::distributed {

using std::chrono::milliseconds;

namespace {

constexpr size_t kSteps = 21;  // whose median counts
constexpr int kTimes = 20;
constexpr milliseconds kLeast = std::chrono::minutes(1);

}  // namespace

void Pace::begin_step(Time now) {
  if (begin_) steps_.push_back(std::chrono::duration_cast<milliseconds>(now - *begin_));
  if (steps_.size() > kSteps) steps_.pop_front();
  begin_ = now;
}

std::optional<milliseconds> Pace::limit() const {
  if (steps_.empty()) return std::nullopt;
  std::vector<milliseconds> sorted(steps_.begin(), steps_.end());
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  return std::max(kLeast, kTimes * *middle);
}

}  // namespace atelier::distributed
