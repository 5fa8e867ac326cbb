#include "atelier/host/device_traits.h"

#include <array>
#include <atomic>

namespace atelier::ops {
namespace {

constexpr size_t kMostDevices = 128;  // a DeviceIndex counts no further
std::array<std::atomic<int>, kMostDevices> capabilities;

}  // namespace

void set_compute_capability(at::DeviceIndex index, int capability) {
  capabilities.at(static_cast<size_t>(index)) = capability;
}

int compute_capability(at::Device device) {
  if (!device.is_cuda()) return 0;
  const auto index = static_cast<size_t>(device.has_index() ? device.index() : 0);
  return index < capabilities.size() ? capabilities[index].load() : 0;
}

}  // namespace atelier::ops
