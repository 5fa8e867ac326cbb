// What ranks hold of a training, and what they send each other, by how they share it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host/parameters/exchange_plan.h"
#include "memory/link_profile.h"
#include "memory/planner.h"

namespace atelier::plan {

using parameters::RankMode;
using parameters::summing_mode;

// Bytes of what is trained, whole.
struct TrainedBytes {
  double values = 0, gradients = 0, states = 0;
};
struct HeldBytes {
  double device = 0, host = 0;
  double gradients = 0;  // of these
};
// What one rank holds of these. Stage 1 shares states, 2 gradients too, 3 values too.
HeldBytes held_bytes(const RankMode& mode, const TrainedBytes& whole);

// Bytes that one rank sends in a step of `batches` batches. `gathered`: of the blocks' weights that
// stage 3 brings for each pass over them, trained and frozen.
double sent_bytes(const RankMode& mode, const TrainedBytes& whole, double gathered, double batches);

// What the device holds of an exchange at one time, at most, beside what held_bytes() counts.
struct UnderWay {
  double gradients = 0;  // while they are made
  double values = 0;     // of those that come back when they are moved
};
// `passes`: backward passes of a step. `block`: bytes of the largest block that is divided.
// `through_host`: gradients are summed in the memory of the host.
UnderWay under_way_bytes(const parameters::ExchangePlan& exchange, int64_t passes, double block,
                         bool through_host);

// The ranks that `mode` shares over.
memory::RankGroup group_of(const RankMode& mode, const memory::LinkProfile& links);

// Leaves a part of each block on the rank; the rest comes from the others, block by block.
void shard_blocks(memory::PlannedComponent& component, const RankMode& mode,
                  const memory::LinkProfile& links);

// Attention among rows that can be shared out.
struct SharedAttention {
  double bytes = 0.0;  // of the outputs of a block, which queries have, too
  int64_t heads = 1, key_heads = 1;
  double seconds = 0.0;  // of a forward pass of a block, on one rank
};
// Divides the rows of samples over `mode.sequence` ranks: what they compute and hold.
void divide_rows(memory::Strategy& strategy, const RankMode& mode);
// Divides them with what they exchange. Where they divide the key heads, these are queries, keys,
// values and outputs around attention, while nothing is computed; otherwise keys and values go
// around all ranks while those at hand are attended to, and in the backward pass these and their
// gradients. Returns the seconds of a step in which a rank waits for that; sets what it `sends`.
double share_rows(memory::Strategy& strategy, const RankMode& mode,
                  const SharedAttention& attention, const memory::LinkProfile& links,
                  double& sends);

// What a step on one rank trains, as several share it.
struct SharedStep {
  TrainedBytes whole = {};
  std::map<std::string, double> gradients_of = {};  // bytes, by component
  // Moved values: those that come while the next step runs, by component, and all others.
  std::map<std::string, double> awaited_of = {};
  double values_at_end = 0.0;
  SharedAttention attention = {};
  double batches = 1.0;
  bool is_of_factors = false;  // LoRA: whole on each rank, whatever is shared of the base
};
// What one rank sends in a step, and how long nothing is computed meanwhile, beside what the
// planner's clock finds.
struct StepExchange {
  double sent_bytes = 0.0, exposed_seconds = 0.0;
};
// Lets a strategy of one rank do what several do. `components`: those of the run, after
// shard_blocks().
StepExchange share_step(const SharedStep& step,
                        const std::vector<memory::PlannedComponent>& components,
                        const RankMode& mode, const memory::LinkProfile& links,
                        memory::Strategy& strategy);

}  // namespace atelier::plan
