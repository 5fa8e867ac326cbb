// Bytes that a dry run would hold: those of its meta tensors.
#pragma once

#include <cstdint>
#include <memory>

namespace atelier::memory {

// Counts the meta tensors that this thread makes from its construction on. One lives on a thread at
// a time.
class MetaBytes {
 public:
  MetaBytes();
  ~MetaBytes();
  MetaBytes(const MetaBytes&) = delete;
  MetaBytes& operator=(const MetaBytes&) = delete;

  int64_t now() const;      // of what was made since, what is still there
  int64_t peak() const;     // the most that was there at once, since the last forget_peak()
  int64_t written() const;  // of everything that was made
  void forget_peak();

  struct Counter;

 private:
  std::shared_ptr<Counter> counter_;
};

}  // namespace atelier::memory
