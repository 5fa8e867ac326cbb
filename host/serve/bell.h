// What wakes the thread that owns inference.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace atelier::serve {

// Safe to use from several threads.
class Bell {
 public:
  void ring();
  // Waits until it rings, at most for so long. One that has rung since the last wait ends it at
  // once.
  void wait(std::chrono::milliseconds most);

 private:
  std::mutex mutex_;
  std::condition_variable has_rung_;
  bool is_ringing_ = false;
};

}  // namespace atelier::serve
