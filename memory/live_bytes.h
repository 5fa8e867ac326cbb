// Bytes that a piece of work holds on its device, measured.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <c10/core/Device.h>

namespace atelier::memory {

// Counts what is allocated on `device` from its construction on: on the CPU by this thread, which
// takes a counting allocator, on others by everybody. One lives on a thread at a time.
class LiveBytes {
 public:
  // Puts the counting allocator in the place of LibTorch's own for the CPU. It passes everything on
  // and stays for good. The first LiveBytes does it too; where other threads allocate by then, it
  // is called before they begin. Calls after the first do nothing.
  static void install();

  explicit LiveBytes(at::Device device);
  ~LiveBytes();
  LiveBytes(const LiveBytes&) = delete;
  LiveBytes& operator=(const LiveBytes&) = delete;

  int64_t now() const;   // of what was allocated since, what is still there
  int64_t peak() const;  // the most that was there at once

  struct Counter;

 private:
  at::Device device_;
  int64_t before_ = 0;                // of other devices
  std::shared_ptr<Counter> counter_;  // of the CPU
};

// The limit of a device that the CPU stands in for. Used from any thread.
class MemoryLimit {
 public:
  explicit MemoryLimit(int64_t capacity) : capacity_(capacity) {}

  // What LibTorch allocates from now on is taken from `limit`, and given back where it is freed;
  // takes a counting allocator. This holds for every thread, since a run computes on LibTorch's own
  // threads too; those that work for the host suspend it. Null: no limit.
  static void apply(std::shared_ptr<MemoryLimit> limit);
  static std::shared_ptr<MemoryLimit> applied();
  // What this thread allocates is left out until the calls with -1 are as many as those with 1.
  static void suspend(int change);

  // Throws Error{kOutOfMemory}, naming `what` the bytes are for, when less than that is left.
  void take(int64_t bytes, std::string_view what);
  void give(int64_t bytes);
  // Removes the limit; called when its device is destroyed.
  void lift();

  int64_t capacity() const;
  int64_t now() const;
  int64_t peak() const;
  int64_t when_refused() const;  // what was taken when take() threw last; 0: it never did

 private:
  int64_t capacity_, now_ = 0, peak_ = 0, when_refused_ = 0;
};

}  // namespace atelier::memory
