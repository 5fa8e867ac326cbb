#include "host/serve/bell.h"

namespace atelier::serve {

void Bell::ring() {
  {
    const std::lock_guard lock(mutex_);
    is_ringing_ = true;
  }
  has_rung_.notify_one();
}

void Bell::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  has_rung_.wait_for(lock, most, [&] { return is_ringing_; });
  is_ringing_ = false;
}

}  // namespace atelier::serve
