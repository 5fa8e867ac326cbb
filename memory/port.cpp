#include "memory/port.h"

#include <algorithm>

#include "memory/device_port.h"
#include "memory/live_bytes.h"

namespace atelier::memory {

Ticket::State::~State() = default;

Port::~Port() = default;

std::unique_ptr<Port> make_port(at::Device device) {
  if (device.is_cpu()) return make_stand_in({});
  return make_device_port(device);
}

double VirtualClock::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

void VirtualClock::advance(double seconds) {
  const std::lock_guard lock(mutex_);
  now_ += seconds;
}

void VirtualClock::advance_to(double seconds) {
  const std::lock_guard lock(mutex_);
  now_ = std::max(now_, seconds);
}

HostScope::HostScope() {
  MemoryLimit::suspend(1);
}

HostScope::~HostScope() {
  MemoryLimit::suspend(-1);
}

}  // namespace atelier::memory
