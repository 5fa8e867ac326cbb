#include "memory/pass_time.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

namespace atelier::memory::passes {
namespace {

constexpr int kPasses = 3;  // until the end of a pass no longer depends on how the first one began

}  // namespace

int64_t whole(double picoseconds) {
  return picoseconds >= static_cast<double>(kForever) ? kForever : std::llround(picoseconds);
}

int64_t picoseconds(double seconds) {
  return whole(seconds * 1e12);
}

int64_t plus(int64_t time, int64_t more) {
  return std::min(kForever, time + more);
}

double seconds_of(int64_t picoseconds) {
  return static_cast<double>(picoseconds) * 1e-12;
}

// A simulation with three clocks, each a time from which on something is free again:
//
//   copied    the line on which blocks come to the device
//   sent      the line between ranks: the same as `copied` where blocks come from ranks
//   computed  the device
//
//   copied    |= block 0 =|= block 1 =|    |= block 2 =|         two slots: block 2 takes that of
//   computed              |== step 0 ==|== step 1 ==|== step 2 ==|     block 0, behind step 0
//
// Steps are taken in their order. A step's block begins to come when the line and a slot are free:
// of S slots, arrival n takes that of arrival n - S, which `ends[n - S]` says to have computed. The
// step begins when the device is free and its block has come. What a step sends waits in `leaving`
// from the step's end on, and goes as soon as its line is free; a copy that shares the line lets
// go first what was there before it. Blocks that stay come once in a pass, each when one that
// stayed in the pass before has run for the last time (`left`).
//
// Passes follow each other on the same clocks. The first ones begin with idle lines; after kPasses
// the time from one end to the next is that of any pass.
int64_t streamed_time(const std::vector<TimedStep>& order, const Arrivals& arrivals) {
  const auto& [copies, comes, slots, are_from_ranks] = arrivals;
  std::vector<int64_t> ends;  // of computing, for each arrival
  std::vector<int64_t> left;  // when those that stay ran last in the pass before
  int64_t copied = 0, line = 0, computed = 0, before = 0;
  int64_t& sent = are_from_ranks ? copied : line;
  constexpr size_t kNone = SIZE_MAX;
  size_t last = kNone;
  std::deque<std::pair<int64_t, int64_t>> leaving;  // from when on, and how long it takes
  const auto send_until = [&](int64_t time) {
    for (; !leaving.empty() && leaving.front().first <= time; leaving.pop_front())
      sent = plus(std::max(sent, leaving.front().first), leaving.front().second);
  };
  for (int pass = 0; pass < kPasses; ++pass) {
    before = computed;
    bool has_sent = false;
    std::vector<int64_t> coming = comes, ran(comes.size(), 0);
    size_t arrived = 0;
    for (const TimedStep& step : order) {
      if (step.awaits > 0) {
        sent = plus(std::max(sent, before), step.awaits);
        computed = std::max(computed, sent);
      }
      if (!coming.empty() && coming[step.block] > 0) {
        if (arrived < left.size()) copied = std::max(copied, left[arrived++]);
        copied = plus(copied, std::exchange(coming[step.block], 0));
        computed = std::max(computed, copied);
      }
      if (copies[step.block] > 0 && step.block != last) {
        const auto arrival = static_cast<int64_t>(ends.size());
        const int64_t free = arrival < slots ? 0 : ends[static_cast<size_t>(arrival - slots)];
        send_until(free);
        copied = plus(std::max(copied, free), copies[step.block]);
        computed = plus(std::max(computed, copied), step.time);
        ends.push_back(computed);
        last = step.block;
      } else {
        computed = plus(computed, step.time);
        if (copies[step.block] > 0) ends.back() = computed;
      }
      if (!comes.empty() && comes[step.block] > 0) ran[step.block] = computed;
      if (step.sends > 0) leaving.emplace_back(computed, step.sends);
      has_sent |= step.sends > 0;
    }
    send_until(kForever);
    if (has_sent) computed = std::max(computed, sent);
    std::erase(ran, 0);
    std::ranges::sort(ran);
    left = std::move(ran);
  }
  return computed - before;
}

}  // namespace atelier::memory::passes
