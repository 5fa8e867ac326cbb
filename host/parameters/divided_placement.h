// Trained weights of blocks that are divided among the processes of a run (stage 3 of ZeRO).
#pragma once

#include <memory>

#include "host/distributed/shards.h"
#include "host/parameters/parameter_placement.h"

namespace atelier::parameters {

// Whether each process has a part of the weight, and the whole of it only while its block runs.
bool is_divided(const model::LoadedModel& model, const Selection::TrainedWeight& trained);

// Weights that are divided are trained where parts of their blocks rest, or in copies of these in
// host memory where `rest` is there; `rest` has all others. What was moved comes with the next
// gather. All processes of `group` call this.
std::unique_ptr<ParameterPlacement> divide_parameters(std::unique_ptr<ParameterPlacement> rest,
                                                      model::LoadedModel& model,
                                                      distributed::Group& group,
                                                      const distributed::ShardGroups& groups);

}  // namespace atelier::parameters
