// Devices of host memory that are as asynchronous as a GPU, registered with LibTorch as
// PrivateUse1: a program that links atelier_queued_device has them.
//
// Each device has streams, and each stream a queue of work: operators (run by the CPU's kernels, in
// place), copies, and events. A call queues its work and returns. Work runs when the host waits for
// it, or on a whim: a seeded choice among the heads of all queues whose events are reached, where
// some streams are slow. Memory is NaN when it is taken, and so is the host's until a copy into it
// has run.
//
// Values show a missing wait under some orders. Whatever the order, each stream also has a clock of
// what comes before it, and each access to memory is held against those of other streams: a race, a
// block that is freed while another stream may use it, and host memory that is gone before its copy
// are faults that name the streams. Blocks go back to their stream's cache when they are freed, or
// when streams that record_stream() named are done; one device has no other's memory.
//
// The device that a thread has chosen is seen as CUDA sees it: taking memory, and asking or waiting
// for an event, opens it. Operators that return new tensors and have no out= variant are computed
// when they are called, and their result is queued. Host memory that LibTorch allocated is read
// when the copy is queued, as pageable memory; that of at::from_blob() counts as pinned.
//
// Not modelled: graphs, time, what kernels ask of addresses beyond the size of an element, and that
// the host cannot read the device's memory by its address.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier::test {

inline constexpr int kQueuedDevices = 3;

inline at::Device queued_device(int index = 0) {
  return {at::kPrivateUse1, static_cast<at::DeviceIndex>(index)};
}

// What the host waits for.
enum class Wait { kEvent, kStream, kDevice, kValue, kCopy };

struct QueuedOptions {
  uint64_t seed = 1;  // of the order
  // How likely work runs before it is waited for, at each call and again after each piece of it.
  double eagerness = 0.5;
  int64_t capacity = int64_t{1} << 40;  // bytes of a device
  std::set<Wait> refused = {};          // these throw c10::Error
  std::set<int> closed = {};            // devices that nobody may use
  bool forgets_users = false;           // record_stream() does nothing
};

// What is seen while it lives. One at a time; the devices rest when it begins.
class QueuedDevices {
 public:
  explicit QueuedDevices(const QueuedOptions& options = {});
  ~QueuedDevices();
  QueuedDevices(const QueuedDevices&) = delete;
  QueuedDevices& operator=(const QueuedDevices&) = delete;

  std::vector<std::string> faults() const;
  // What the host waited for, in order.
  struct Waited {
    Wait kind;
    std::string what;
  };
  std::vector<Waited> waits() const;
  int count(Wait kind) const;
  std::set<int> opened() const;  // devices that were used
  // From now on.
  void refuse(std::set<Wait> kinds);
};

}  // namespace atelier::test
