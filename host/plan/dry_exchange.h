// What ranks exchange of a training that is not loaded: the plan that its ParameterPlacement would
// carry out.
#pragma once

#include <string>
#include <vector>

#include "host/model/model_loader.h"
#include "host/optim/optimizer.h"
#include "host/order/training.h"
#include "host/parameters/exchange_plan.h"
#include "host/parameters/selection.h"
#include "memory/planner.h"

namespace atelier::plan {

// Bytes that the optimizer of one rank has, the one that moves most.
struct MovedBytes {
  double numbers = 0;  // how many it moves
  double copies = 0;   // in host memory, of what the model computes with on the device
  double states = 0;
  double step = 0;  // see optim::Optimizer::step_bytes()
};

struct DryExchange {
  parameters::ExchangePlan plan;
  MovedBytes moved;
};

// `mode`: that of the base; its `on_host` says whether what is trained is moved there, and
// `rests_on_host` whether weights that are trained rest there with their blocks. `components`:
// those of the run, whose `shards` say which of them are divided.
DryExchange dry_exchange(model::LoadedModel& model, const parameters::Selection& selection,
                         const order::Training& config, const parameters::RankMode& mode,
                         bool rests_on_host,
                         const std::vector<memory::PlannedComponent>& components);

}  // namespace atelier::plan
