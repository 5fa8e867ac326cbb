// How much of a device is taken.
#pragma once

#include <cstdint>
#include <memory>

#include <c10/core/Device.h>

#include "memory/transfer_device.h"

namespace atelier::memory {

class MemoryLimit;

struct DeviceBytes {
  int64_t live = 0;          // of tensors
  int64_t peak = 0;          // the most of that at once, since somebody set it back
  int64_t reserved = 0;      // the most that a GPU's allocator has taken of it; 0: this is no GPU
  int64_t capacity = 0;      // 0: there is no limit, or it is not known
  int64_t when_refused = 0;  // live, when memory was refused last; 0: it never was, or not known
};

// Asks a GPU's allocator, or counts what LibTorch allocates outside of a HostScope: what a
// simulated device counts anyway, and otherwise for as long as this lives. Used from any thread;
// nobody waits for the device.
class DeviceMeter {
 public:
  // `transfer`: of the device, for its own buffers, and outlives this; null: there is none.
  DeviceMeter(at::Device device, const TransferDevice* transfer);
  ~DeviceMeter();
  DeviceMeter(const DeviceMeter&) = delete;
  DeviceMeter& operator=(const DeviceMeter&) = delete;

  DeviceBytes bytes() const;

 private:
  at::Device device_;
  const TransferDevice* transfer_;
  std::shared_ptr<MemoryLimit> limit_;  // of the CPU
  bool is_own_ = false;
};

// What the program holds of the host's memory, in bytes; 0 where the system does not say.
int64_t resident_host_bytes();

}  // namespace atelier::memory
