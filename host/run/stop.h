// Signals that ask a program to end its work.
#pragma once

#include <optional>

namespace atelier::run {

// While one lives, signals are noted instead of ending the program. One at a time. Signals of one
// number that come within two seconds are one: a launcher passes on what its processes, signalled
// as a group, have got themselves.
class StopSignals {
 public:
  enum class Kind {
    // SIGTERM, SIGUSR1, SIGINT, and SIGHUP unless the program was started to ignore that; a second
    // one ends the program at once: 128 + its number. SIGUSR2 asks for a saved state without
    // leaving.
    kAll,
    // The signals of kAll, of a program that prepares its work until begin() is called, and has
    // nothing to save: the first one ends it at once with exit_code(), and SIGUSR2 does nothing.
    kAllFromBegin,
    // The first of SIGINT, SIGTERM, and SIGHUP unless the program was started to ignore that, which
    // also wakes a read that waits for input; a second one does what it did before.
    kInterrupt,
  };
  explicit StopSignals(Kind kind = Kind::kAll);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Signals are noted from here on.
  static void begin();
  // How the program ends is decided: from here on signals do nothing, also behind the destructor.
  // A launcher that ends all processes once the first has ended changes nothing then.
  static void ignore_until_exit();

  // The signal that asked to leave; nullopt: none has.
  static std::optional<int> requested();
  static bool is_requested() { return requested().has_value(); }
  // 130 for SIGINT, 75 for the others.
  static int exit_code(int signal);
  // Ends the program as the signal does where nobody notes it, so that whoever sent it sees that.
  [[noreturn]] static void end_by(int signal);
  // True once for each SIGUSR2.
  static bool take_save_request();
};

}  // namespace atelier::run
