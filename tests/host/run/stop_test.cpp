#include "host/run/stop.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

using atelier::run::StopSignals;

namespace {

// Runs `action` in a process of its own, which ends with what it returns. Returns its exit code;
// 1000 + the signal when one ended it.
int exit_code_of(const std::function<int()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(action());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("The first signal is noted, and says how the run ends", "[stop]") {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT}) {
    const int code = exit_code_of([&] {
      const StopSignals guard;
      if (StopSignals::requested()) return 1;
      raise(signal);
      if (StopSignals::requested() != signal) return 2;
      return StopSignals::exit_code(signal);
    });
    CHECK(code == (signal == SIGINT ? 130 : 75));
  }
}

TEST_CASE("A second signal ends the program at once", "[stop]") {
  for (const int second : {SIGTERM, SIGUSR1, SIGINT}) {
    const int code = exit_code_of([&] {
      const StopSignals guard;
      raise(SIGTERM);
      raise(second);
      return 1;
    });
    CHECK(code == 128 + second);
  }
}

TEST_CASE("SIGUSR2 asks for a checkpoint, once for each, and for no end", "[stop]") {
  const int code = exit_code_of([] {
    const StopSignals guard;
    if (StopSignals::take_save_request()) return 1;
    raise(SIGUSR2);
    raise(SIGUSR2);
    if (!StopSignals::take_save_request() || !StopSignals::take_save_request()) return 2;
    if (StopSignals::take_save_request() || StopSignals::requested()) return 3;
    return 0;
  });
  CHECK(code == 0);
}

TEST_CASE("What signals did before is put back", "[stop]") {
  const int code = exit_code_of([] {
    struct sigaction own = {};
    own.sa_handler = [](int) { _exit(42); };
    sigaction(SIGINT, &own, nullptr);
    {
      const StopSignals guard;
      raise(SIGINT);
    }
    {
      const StopSignals guard;  // what was noted before is forgotten
      if (StopSignals::requested()) return 1;
      raise(SIGUSR1);
    }
    raise(SIGINT);
    return 2;
  });
  CHECK(code == 42);
  CHECK(exit_code_of([] {
          signal(SIGTERM, SIG_DFL);  // the test framework has a handler
          { const StopSignals guard; }
          raise(SIGTERM);
          return 1;
        }) == 1000 + SIGTERM);
}

TEST_CASE("An interrupt is noted alone where that is asked, and the second goes to who was before",
          "[stop]") {
  const int code = exit_code_of([] {
    struct sigaction own = {};
    own.sa_handler = [](int) { _exit(42); };
    sigaction(SIGINT, &own, nullptr);
    { const StopSignals none(StopSignals::Kind::kInterrupt); }
    const StopSignals guard(StopSignals::Kind::kInterrupt);
    if (StopSignals::requested()) return 1;
    raise(SIGINT);
    if (StopSignals::requested() != SIGINT) return 2;
    raise(SIGINT);
    return 3;
  });
  CHECK(code == 42);
  for (const int other : {SIGTERM, SIGUSR1, SIGUSR2}) {
    CHECK(exit_code_of([&] {
            signal(other, SIG_DFL);  // the test framework has handlers
            const StopSignals guard(StopSignals::Kind::kInterrupt);
            raise(other);
            return 1;
          }) == 1000 + other);
  }
}
