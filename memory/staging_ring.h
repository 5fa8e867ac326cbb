// Pinned memory through which much goes to a device.
#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "memory/transfer_device.h"

namespace atelier::memory {

// Two parts: while one is on its way to the device, the other is filled. Not thread-safe.
class StagingRing {
 public:
  // `transfer` outlives it.
  StagingRing(TransferDevice& transfer, int64_t part_bytes);

  // Bytes that can still be taken of the part that is being filled; with nothing taken, all of it.
  int64_t room() const { return part_bytes_ - used_; }
  // Room for what goes to `to`: uint8 [1 to room()], on the device. The caller fills it before
  // send().
  void* take(const at::Tensor& to);
  // Queues the copies of what was taken; computing that this thread queues from now on comes after
  // them. The other part is filled next: waits until it is free.
  void send();
  // Waits until everything that was sent is there.
  void wait();

 private:
  struct Part {
    at::Tensor memory;
    Ticket sent;  // its last copy
  };
  struct Piece {
    at::Tensor from, to;
  };

  TransferDevice& transfer_;
  const int64_t part_bytes_;
  std::array<Part, 2> parts_;
  size_t now_ = 0;  // which of them is filled
  int64_t used_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace atelier::memory
