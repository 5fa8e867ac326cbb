#include "memory/device_meter.h"

#include <fstream>
#include <unistd.h>

#include <ATen/DeviceAccelerator.h>

#include "memory/live_bytes.h"

namespace atelier::memory {

DeviceMeter::DeviceMeter(at::Device device, const TransferDevice* transfer)
    : device_(device), transfer_(transfer) {
  if (!device_.is_cpu()) {
    if (!device_.has_index()) device_.set_index(at::accelerator::getDeviceIndex());
    return;
  }
  limit_ = MemoryLimit::applied();
  if (limit_) return;
  is_own_ = true;
  limit_ = std::make_shared<MemoryLimit>(INT64_MAX);
  MemoryLimit::apply(limit_);
}

DeviceMeter::~DeviceMeter() {
  if (is_own_ && MemoryLimit::applied() == limit_) MemoryLimit::apply(nullptr);
}

DeviceBytes DeviceMeter::bytes() const {
  DeviceBytes bytes;
  if (!device_.is_cpu()) {
    const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = at::accelerator::getDeviceStats(device_.index());
    bytes.live = stats.allocated_bytes[all].current;
    bytes.peak = stats.allocated_bytes[all].peak;
    bytes.reserved = stats.reserved_bytes[all].peak;
    bytes.capacity = static_cast<int64_t>(at::accelerator::getMemoryInfo(device_.index()).second);
    return bytes;
  }
  bytes.live = limit_->now();
  bytes.peak = limit_->peak();
  if (!is_own_) {
    bytes.capacity = limit_->capacity();
    bytes.when_refused = limit_->when_refused();
  } else if (transfer_ != nullptr) {
    const int64_t buffers = transfer_->stats().live_bytes;
    bytes.live += buffers;
    bytes.peak += buffers;
  }
  return bytes;
}

int64_t resident_host_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  if (!(file >> all >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace atelier::memory
