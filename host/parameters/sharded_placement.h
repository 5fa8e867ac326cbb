// Trained tensors that the processes of a run share out: the optimizer of each moves pieces of them
// (ZeRO).
#pragma once

#include <memory>

#include "host/distributed/ranks.h"
#include "host/parameters/parameter_placement.h"
#include "host/report/problems.h"

namespace atelier::parameters {

// How many ranks share one whole of what is trained, as --zero_stage and --zero_group say; 1:
// nothing of it is shared out.
int shard_ranks(const order::Training& config, const distributed::Ranks& ranks);
// How many have the blocks of the denoisers among them (stage 3); 1: each has them whole.
int block_ranks(const order::Training& config, const distributed::Ranks& ranks);

// Whether --zero_group makes groups of one size of these ranks.
bool makes_whole_groups(const order::Training& config, const distributed::Ranks& ranks);

// What cannot be shared out among these ranks becomes a problem.
void check_shards(const order::Training& config, const distributed::Ranks& ranks,
                  report::Problems& problems);

// Tensors are where `whole` places them, on every rank; pieces are parts of these tensors, or, with
// `on_host`, copies in host memory. Weights of divided blocks are divided with them. All ranks of
// `group` call this.
std::unique_ptr<ParameterPlacement> share_parameters(std::unique_ptr<ParameterPlacement> whole,
                                                     model::LoadedModel& model,
                                                     const Selection& selection,
                                                     const order::Training& config,
                                                     distributed::Group& group, bool on_host);

}  // namespace atelier::parameters
