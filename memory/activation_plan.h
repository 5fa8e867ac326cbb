// Which operator outputs of which blocks are kept for the backward pass, within a budget.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "memory/activation_budget.h"
#include "memory/recompute.h"

namespace atelier::memory {

// Outputs of equal size and cost; each of them is either kept or recomputed.
struct KeepChoice {
  int64_t bytes = 0;        // of one
  int64_t picoseconds = 0;  // that making one again takes
  int64_t count = 1;
};

struct KeepSolution {
  std::vector<int64_t> kept;  // of each choice, how many
  int64_t bytes = 0;
  int64_t picoseconds = 0;  // that are saved
  int64_t steps = 0;        // that finding it took
};

// The most comparisons that choose_kept() and a plan make; this bounds their time.
inline constexpr int64_t kMostPlanSteps = 4'000'000;

// Saves the most time with at most `budget` bytes; of equal times, with the fewest bytes. A larger
// budget never keeps fewer bytes.
//
// Exact when sums of the bytes are few enough for `most_steps`: when they are, over their common
// divisor. Otherwise the bytes of each choice are rounded up to a unit that makes them so.
KeepSolution choose_kept(std::span<const KeepChoice> choices, int64_t budget,
                         int64_t most_steps = kMostPlanSteps);

// What outputs may wait in host memory.
struct OffloadLimits {
  int64_t host_bytes = 0;         // 0: nothing is offloaded
  double bytes_per_second = 0.0;  // of copies to the host, beside computing
};

// What happens to the runs of blocks of one forward pass.
struct ActivationPlan {
  struct Run {
    bool is_whole = false;  // it just runs, and autograd keeps what it needs
    ops::ActionPlan actions;
  };
  std::vector<Run> runs;
  int64_t num_recomputed = 0;  // runs
  int64_t kept_bytes = 0;      // beside what every recomputed run holds, without whole runs to come
  int64_t offloaded_bytes = 0;  // in host memory
  int64_t moving_bytes = 0;     // most of these that are on the device, on their way
  int64_t peak_bytes = 0;       // of all activations of blocks, at most
  double extra_seconds = 0.0;   // that recomputing takes
  bool is_over_budget = false;
};

// Plans the runs of a forward pass from run `first` on; those before it keep `spent` bytes beside
// what every recomputed run holds. The last run is whole: its activations would be made again right
// away. All are when budget and kind allow it. Those that are always recomputed never are.
//
// `available`: bytes that the device has left, of kAuto. Of equal runs, late ones keep more.
// Outputs that no gradient reads are skipped.
//
// Equal outputs of one kind of runs are offloaded in as many runs as the host has room for,
// spread evenly, the last two of the pass left out. They fit into the time of one forward pass of
// the block; a backward pass takes longer, so they are back in time too. Which they are is found by
// trying: all sets when kMostPlanSteps allow it, and otherwise the most promising ones.
ActivationPlan plan_activations(std::span<const std::shared_ptr<const BlockCosts>> runs,
                                const ActivationBudget& budget, int64_t available, size_t first = 0,
                                int64_t spent = 0, const OffloadLimits& offload = {});

}  // namespace atelier::memory
