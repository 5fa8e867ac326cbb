// Activations that wait in host memory for the backward pass.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "memory/transfer_device.h"

namespace atelier::memory {

// The host's side: memory that is taken once and used again by every step. Used from any thread.
class Offloader {
 public:
  struct Stats {
    int64_t host_bytes = 0;  // taken now, in use or not
    int64_t sent_bytes = 0;  // ever
    int64_t brought_bytes = 0;
  };

  // `transfer` outlives this and all that is sent. `host_bytes`: most that is in use at once; what
  // aligning it takes comes on top.
  Offloader(TransferDevice& transfer, int64_t host_bytes);

  TransferDevice& transfer() const { return transfer_; }
  int64_t host_bytes() const { return limit_; }
  // The rate of a copy to the host; measured when it is asked for first.
  double bytes_per_second();
  Stats stats() const;

 private:
  friend class OffloadBatch;

  // Takes a buffer of `size` bytes, `used` of them filled; undefined: that is more than is left.
  at::Tensor take(int64_t size, int64_t used);
  // A buffer that copies still use (not `is_idle`) is freed when the last of them is done.
  void give_back(at::Tensor memory, int64_t used, bool is_idle);
  // Two loads are on their way at most: the host waits for the one before those.
  void sent(const Ticket& ticket, int64_t bytes);
  void brought(int64_t bytes);

  TransferDevice& transfer_;
  const int64_t limit_;
  mutable std::mutex mutex_;
  int64_t used_ = 0;
  std::multimap<int64_t, at::Tensor> idle_;  // by size
  std::deque<Ticket> on_their_way_;
  Stats stats_;
  std::optional<double> bytes_per_second_;
};

// What one run of a block sends to the host and gets back. Not thread-safe.
class OffloadBatch {
 public:
  explicit OffloadBatch(std::shared_ptr<Offloader> offloader);
  ~OffloadBatch();
  OffloadBatch(const OffloadBatch&) = delete;
  OffloadBatch& operator=(const OffloadBatch&) = delete;

  // Whether `tensor` can be sent: it is on the device, without gaps.
  bool accepts(const at::Tensor& tensor) const;
  // Returns its place in take().
  size_t add(at::Tensor tensor);
  // Queues the copies to the host and drops the tensors; without room on the host they stay.
  void send();
  // Queues the copies back to the device, unless they are queued already.
  void fetch();
  // The tensors, after fetch(). Computing that follows waits for them. Can be asked for again: the
  // host's copies stay.
  std::vector<at::Tensor> take();

 private:
  struct Item {
    at::Tensor value;  // undefined while it is away
    std::vector<int64_t> sizes, strides;
    at::TensorOptions options;
    at::Tensor on_host;  // as one row
  };

  std::shared_ptr<Offloader> offloader_;
  std::vector<Item> items_;
  at::Tensor memory_;  // of the host; undefined: nothing was sent
  int64_t bytes_ = 0;  // that were sent
  Ticket out_, in_;
  bool is_fetched_ = false;
};

}  // namespace atelier::memory
