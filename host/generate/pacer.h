// Keeps the host close to the device.
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace atelier::generate {

// At most one step ahead: otherwise progress would show launches, and Ctrl-C would be heard when
// everything is queued already.
class Pacer {
 public:
  explicit Pacer(at::Device device) : device_(device) {}

  // Call after the work of a step is queued: waits for the step before it.
  void step();

 private:
  at::Device device_;
  std::optional<c10::Event> previous_;
};

}  // namespace atelier::generate
