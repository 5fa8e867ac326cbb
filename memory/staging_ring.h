// Pinned memory through which much goes to a device.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "memory/transfer_device.h"

namespace atelier::memory {

// Two halves: while one is on its way to the device, the other is filled. Not thread-safe.
class StagingRing {
 public:
  // `transfer` outlives it.
  StagingRing(TransferDevice& transfer, int64_t half_bytes);

  // Bytes that can still be taken of the half that is being filled; with nothing taken, all of it.
  int64_t room() const { return half_bytes_ - used_; }
  // Room for what goes to `to`: uint8 [1 to room()], on the device. The caller fills it before
  // send().
  void* take(const at::Tensor& to);
  // Queues the copies of what was taken; computing that this thread queues from now on comes after
  // them. The other half is filled next: waits until it is free.
  void send();
  // Waits until everything that was sent is there.
  void wait();

 private:
  struct Half {
    at::Tensor memory;
    Ticket sent;  // its last copy
  };
  struct Copy {
    at::Tensor from, to;
  };

  TransferDevice& transfer_;
  const int64_t half_bytes_;
  std::array<Half, 2> halves_;
  size_t now_ = 0;  // which of them is filled
  int64_t used_ = 0;
  std::vector<Copy> copies_;
};

}  // namespace atelier::memory
