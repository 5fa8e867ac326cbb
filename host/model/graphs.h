// The blocks of a loaded model as CUDA graphs.
#pragma once

#include "host/model/model_loader.h"
#include "memory/graph_runner.h"

namespace atelier::model {

// What makes graphs of the blocks that LoadedModel::runner() runs.
memory::GraphRunner& graphs_of(LoadedModel& model);

}  // namespace atelier::model
