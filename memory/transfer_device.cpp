#include "memory/transfer_device.h"

#include <algorithm>

#include "memory/cuda_transfer_device.h"
#include "memory/live_bytes.h"
#include "memory/slab_peers.h"

namespace atelier::memory {

Ticket::State::~State() = default;

TransferDevice::~TransferDevice() = default;

SlabPeers::~SlabPeers() = default;

std::unique_ptr<TransferDevice> make_transfer_device(at::Device device) {
  if (device.is_cpu()) return make_simulated_device({});
  return make_cuda_transfer_device(device);
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
