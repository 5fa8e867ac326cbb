// The clock that tells how long something took.
#pragma once

#include <chrono>

namespace atelier::memory {

// Seconds since a fixed moment. The clock never goes back.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace atelier::memory
