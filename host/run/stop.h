// Signals that ask a run to save and leave.
#pragma once

#include <optional>

namespace atelier::run {

// While one lives, the first SIGTERM, SIGUSR1 or SIGINT is noted, and a second one ends the program
// at once: 128 + its number. SIGUSR2 asks for a checkpoint without leaving. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // The signal that asked the run to leave; nullopt: none has.
  static std::optional<int> requested();
  // 130 for SIGINT, 75 for the others.
  static int exit_code(int signal);
  // True once for each SIGUSR2.
  static bool take_save_request();
};

}  // namespace atelier::run
