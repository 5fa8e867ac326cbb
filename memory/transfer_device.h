// A compute device as streaming sees it: memory with a limit, and copies beside the computing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include <ATen/core/Tensor.h>

namespace atelier::memory {

// Work that was queued; cheap to copy. An empty one is done.
class Ticket {
 public:
  // What the device that gave it knows of it.
  struct State {
    virtual ~State();
  };
  Ticket() = default;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

// Used from any thread. Outlives its tensors and tickets.
class TransferDevice {
 public:
  struct Stats {
    int64_t capacity = 0;         // of the device; INT64_MAX: no limit
    int64_t live_bytes = 0;       // on the device; without a limit, of device_memory() alone
    int64_t peak_bytes = 0;       // the most that was there at once
    int64_t host_bytes = 0;       // of host_memory() and pin() that is there
    int64_t pageable_bytes = 0;   // of those, what the system did not let us pin: slow to copy
    int64_t bytes_in = 0;         // copied since construction, or queued for it
    int64_t bytes_out = 0;        // the same in the other direction
    double waited_seconds = 0.0;  // of compute_after(), where the host is what computes
  };

  virtual ~TransferDevice();

  virtual at::Device device() const = 0;

  // uint8 [bytes] with any values, aligned to 256 bytes; freed when the tensor goes. Host memory is
  // pinned where that matters, and taken in exact sizes, not in powers of two. Device memory may
  // still be in use by what was queued for computing before: a copy into it comes after computed().
  // Throw Error{kOutOfMemory}.
  virtual at::Tensor device_memory(int64_t bytes) = 0;
  virtual at::Tensor host_memory(int64_t bytes) = 0;
  // Pins host memory that is there already, shared with other processes, and is kept until
  // the tensor goes.
  virtual at::Tensor pin(std::shared_ptr<void> memory, int64_t bytes) = 0;

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

  virtual Stats stats() const = 0;

  // An exchange with other processes that fills `to`, on the device: `begin` begins it, is called
  // now, by this thread, and returns what waits for its end. It goes on beside the computing and
  // beside copies; it begins when `after` is done.
  virtual Ticket exchange(const std::function<std::function<void()>()>& begin, const at::Tensor& to,
                          const Ticket& after = {}) = 0;
};

// Seconds that pass only when somebody says so. Used from any thread.
class VirtualClock {
 public:
  double now() const;
  void advance(double seconds);
  void advance_to(double seconds);  // unless it is later

 private:
  mutable std::mutex mutex_;
  double now_ = 0.0;
};

// A device of host memory, for machines without a GPU and for tests: the host computes, a limit
// bounds what device_memory() gives and what LibTorch allocates meanwhile outside of a HostScope,
// and copies take as long as their bytes at a rate.
struct SimulatedDeviceOptions {
  int64_t capacity = INT64_MAX;  // bytes; one device with a limit lives at a time
  // The rate of each direction, and of exchanges; 0: as fast as memory.
  double bytes_per_second = 0.0;
  bool poison = false;  // memory is NaN until a copy into it is done
  // Where the time of copies passes, and that of waiting for them; null: on the wall.
  std::shared_ptr<VirtualClock> clock = nullptr;
};
std::unique_ptr<TransferDevice> make_simulated_device(const SimulatedDeviceOptions& options);

// Makes the one of a CUDA device; a simulated device without limits for the CPU.
std::unique_ptr<TransferDevice> make_transfer_device(at::Device device);

// While it lives, what LibTorch allocates on this thread rests on the host: no simulated device
// counts it. Threads of ours that read, decode, write or optimize on the host hold one.
class HostScope {
 public:
  HostScope();
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;
};

}  // namespace atelier::memory
