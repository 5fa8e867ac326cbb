#include "atelier/host/device_graph.h"

#include <array>
#include <atomic>

namespace atelier::ops {
namespace {

std::array<std::atomic<MakeGraphRecorder>, at::COMPILE_TIME_MAX_DEVICE_TYPES> makers;

}  // namespace

DeviceGraph::~DeviceGraph() = default;
GraphRecorder::~GraphRecorder() = default;

void register_graph_recorder(at::DeviceType type, MakeGraphRecorder make) {
  makers.at(static_cast<size_t>(type)) = make;
}

bool can_record_graphs(at::DeviceType type) {
  return makers.at(static_cast<size_t>(type)) != nullptr;
}

std::unique_ptr<GraphRecorder> make_graph_recorder(at::Device device) {
  const MakeGraphRecorder make = makers.at(static_cast<size_t>(device.type()));
  return make == nullptr ? nullptr : make(device);
}

}  // namespace atelier::ops
