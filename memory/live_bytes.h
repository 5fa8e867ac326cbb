// Bytes that a piece of work holds on its device, measured.
#pragma once

#include <cstdint>
#include <memory>

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

}  // namespace atelier::memory
