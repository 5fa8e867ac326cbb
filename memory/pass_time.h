// How long a pass over blocks takes whose weights come while others compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace atelier::memory::passes {

// Times are whole picoseconds, so that equal ones compare as equal. What takes longer than all
// others takes this.
inline constexpr int64_t kForever = INT64_MAX / 2;

int64_t whole(double picoseconds);
int64_t picoseconds(double seconds);
double seconds_of(int64_t picoseconds);
int64_t plus(int64_t time, int64_t more);

struct TimedStep {
  size_t block;
  int64_t time;
  int64_t sends = 0;   // behind it
  int64_t awaits = 0;  // before it, behind what steps before it await
};

// What comes to the device for the steps of a pass.
struct Arrivals {
  std::vector<int64_t> copies = {};  // picoseconds of each block; 0: it is there
  // Times of those that come once in a pass and stay; empty: none does. Each comes as soon as
  // one of the pass before has run for the last time.
  std::vector<int64_t> comes = {};
  int64_t slots = 0;
  bool are_from_ranks = false;  // on the line on which ranks send; copies have one of their own
};

// The time of one of many passes, which begins when the one before has ended.
//
// Copies run one after another, each as soon as a slot is free. So does what ranks send: first
// what steps await, then what steps send, as soon as they have run; a pass ends when all of that
// has been sent. A block that is still in the last slot does not come again.
int64_t streamed_time(const std::vector<TimedStep>& order, const Arrivals& arrivals);

}  // namespace atelier::memory::passes
