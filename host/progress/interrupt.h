// Ctrl-C as a question instead of an end.
#pragma once

namespace atelier::progress {

// While one lives, the first SIGINT sets a flag and the second ends the program as usual. One at a
// time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool is_requested();
};

}  // namespace atelier::progress
