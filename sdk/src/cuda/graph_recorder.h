// CUDA graphs by LibTorch's own.
#pragma once

#include <memory>

#include "atelier/host/device_graph.h"

namespace atelier::ops::cuda {

std::unique_ptr<GraphRecorder> make_cuda_graph_recorder(at::Device device);

}  // namespace atelier::ops::cuda
