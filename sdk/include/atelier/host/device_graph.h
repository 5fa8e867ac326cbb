// Work of a device that is recorded once and then queued as a whole: CUDA graphs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/export.h"

namespace atelier::ops {

// What was recorded: the same operators with the same numbers on the same memory, which whoever
// replays it keeps there.
class ATELIER_API DeviceGraph {
 public:
  virtual ~DeviceGraph();
  // Queues the work on this thread's stream. Returns what it gives, which stays until any graph of
  // the same recorder is replayed.
  virtual const std::vector<at::Tensor>& replay() = 0;
};

// Not thread-safe. Its graphs share the memory that they compute with, so they are replayed on one
// stream. A graph may outlive it.
class ATELIER_API GraphRecorder {
 public:
  virtual ~GraphRecorder();
  virtual at::Device device() const = 0;

  // Records what `work` queues, which the device does not do now; work of this kind ran before.
  // `work` can be called for as long as the graph lives.
  // Throws what `work` throws, and c10::Error where something in it cannot be recorded: then
  // nothing was, and the device computes on.
  virtual std::unique_ptr<DeviceGraph> record(
      const std::function<std::vector<at::Tensor>()>& work) = 0;
};

// A device library registers what makes recorders of its devices when it is loaded.
using MakeGraphRecorder = std::unique_ptr<GraphRecorder> (*)(at::Device device);
ATELIER_API void register_graph_recorder(at::DeviceType type, MakeGraphRecorder make);
// Asks no device.
ATELIER_API bool can_record_graphs(at::DeviceType type);
// Null where devices of that kind record nothing.
ATELIER_API std::unique_ptr<GraphRecorder> make_graph_recorder(at::Device device);

}  // namespace atelier::ops
