// Time on the wall.
#pragma once

#include <chrono>

namespace atelier::memory {

// Since a fixed moment: for differences.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace atelier::memory
