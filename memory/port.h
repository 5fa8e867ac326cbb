// A compute device as streaming sees it: memory with a limit, and copies beside the computing.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace atelier::memory {

// Work that was queued; cheap to copy. An empty one is done.
class Ticket {
 public:
  struct State;
  Ticket() = default;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// Used from any thread. Outlives its tensors and tickets.
class Port {
 public:
  virtual ~Port();

  virtual at::Device device() const = 0;

  // uint8 [bytes] with any values, aligned to 256 bytes; freed when the tensor goes. Host memory is
  // pinned where that matters, and taken in exact sizes, not in powers of two.
  // Throw Error{kOutOfMemory}.
  virtual at::Tensor device_memory(int64_t bytes) = 0;
  virtual at::Tensor host_memory(int64_t bytes) = 0;

  // Queues a copy of equal sizes and dtypes, and returns at once. Copies of one direction run one
  // after another, beside the computing and beside those of the other direction; this one begins
  // when `after` is done. Both tensors are held until it is done.
  virtual Ticket copy_in(const at::Tensor& from_host, const at::Tensor& to_device,
                         const Ticket& after = {}) = 0;
  virtual Ticket copy_out(const at::Tensor& from_device, const at::Tensor& to_host,
                          const Ticket& after = {}) = 0;

  // What was queued for computing by this thread until now.
  virtual Ticket computed() = 0;
  // Computing that this thread queues from now on begins when `ticket` is done. The host does not
  // wait, unless it is what computes.
  virtual void compute_after(const Ticket& ticket) = 0;
  // The host waits.
  virtual void wait(const Ticket& ticket) = 0;
};

// A device of host memory, for machines without a GPU and for tests: the host computes, a limit
// bounds what device_memory() gives and what LibTorch allocates meanwhile, and copies take as long
// as their bytes at a rate.
struct StandInOptions {
  int64_t capacity = INT64_MAX;       // bytes
  double bytes_per_second = 0.0;      // of each direction; 0: as fast as memory
};
std::unique_ptr<Port> make_stand_in(const StandInOptions& options);

// Of a CUDA device; a stand-in without limits for the CPU.
std::unique_ptr<Port> make_port(at::Device device);

}  // namespace atelier::memory
