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

// What one rank keeps of the gradients of a step, in bytes.
struct GradientBytes {
  double wholes = 0;  // from the backward pass on that makes them, until they are sent, once
  double sums = 0;    // its parts of sums of all ranks
};
// `denoiser`: whose step it is; empty: of all of them.
GradientBytes gradient_bytes(const parameters::ExchangePlan& exchange, const std::string& denoiser);

// Bytes of what is trained that one rank sends in a step of `passes` backward passes, in which each
// divided block runs `runs` times.
double sent_bytes(const parameters::ExchangePlan& exchange, const std::string& denoiser,
                  double passes, double runs);
// And of weights of divided blocks, of which `bytes` come for each of both passes over them.
double gathered_bytes(const RankMode& mode, double bytes, double runs);

// What the device holds of an exchange at one time, at most, beside what ranks keep.
struct UnderWay {
  double gradients = 0;  // while they are made
  double values = 0;     // of those that come back when they are moved
};
// `passes`: backward passes of a step. `through_host`: gradients are summed in the memory of the
// host.
UnderWay under_way_bytes(const parameters::ExchangePlan& exchange, int64_t passes,
                         bool through_host);

// The ranks that `mode` shares over.
memory::RankGroup group_of(const RankMode& mode, const memory::LinkProfile& links);

// Makes blocks of a component as large as all parts of them are, as many as its `shards`.
void round_blocks(memory::PlannedComponent& component);
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

// A place among the blocks of a run.
struct BlockPlace {
  std::string component;
  size_t block = 0;  // in running order
};

// What a step on one rank trains, as several share it.
struct SharedStep {
  const parameters::ExchangePlan* exchange;  // not null, and outlives this
  std::string denoiser = {};                 // whose step exchanges most; empty: all are in each
  std::map<const Block*, BlockPlace> places = {};
  SharedAttention attention = {};
  double batches = 1.0;
};
// What one rank sends in a step, and how long nothing is computed meanwhile, beside what the
// planner's clock finds.
struct StepExchange {
  double sent_bytes = 0.0, exposed_seconds = 0.0;
};
// Lets a strategy of one rank do what several do. `components`: those of the run, after
// shard_blocks(). `mode`: that of the base.
StepExchange share_step(const SharedStep& step,
                        const std::vector<memory::PlannedComponent>& components,
                        const RankMode& mode, const memory::LinkProfile& links,
                        memory::Strategy& strategy);

}  // namespace atelier::plan
