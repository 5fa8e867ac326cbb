#include "host/run/stop.h"

#include <csignal>
#include <ctime>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.h"

using atelier::run::StopSignals;

namespace {

// Runs `action` in a process of its own, which ends with what it returns.
pid_t start(const std::function<int()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(action());
  }
  return child;
}

// Its exit code; 1000 + the signal when one ended it.
int exit_code_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int exit_code_of(const std::function<int()>& action) {
  return exit_code_of(start(action));
}

// Longer than signals are taken for copies of one.
void wait_for_another() {
  timespec rest = {2, 100'000'000};
  while (nanosleep(&rest, &rest) != 0) {
  }
}

}  // namespace

TEST_CASE("The first signal is noted, and says how the run ends", "[stop]") {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGINT}) {
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

TEST_CASE("A program that was started to outlive its terminal goes on", "[stop]") {
  const int code = exit_code_of([] {
    signal(SIGHUP, SIG_IGN);
    const StopSignals guard;
    raise(SIGHUP);
    return StopSignals::requested() ? 1 : 0;
  });
  CHECK(code == 0);
}

TEST_CASE("A second signal ends the program at once", "[stop]") {
  for (const int second : {SIGUSR1, SIGINT}) {
    const int code = exit_code_of([&] {
      const StopSignals guard;
      raise(SIGTERM);
      raise(second);
      return 1;
    });
    CHECK(code == 128 + second);
  }
}

TEST_CASE("SIGUSR2 asks for a checkpoint, and for no end", "[stop]") {
  const int code = exit_code_of([] {
    const StopSignals guard;
    if (StopSignals::take_save_request()) return 1;
    raise(SIGUSR2);
    if (!StopSignals::take_save_request()) return 2;
    if (StopSignals::take_save_request() || StopSignals::requested()) return 3;
    return 0;
  });
  CHECK(code == 0);
}

// The processes wait at the same time.
TEST_CASE("Signals of one number are one for two seconds", "[stop]") {
  const pid_t stopped = start([] {
    const StopSignals guard;
    raise(SIGTERM);
    raise(SIGTERM);
    if (StopSignals::requested() != SIGTERM) return 1;
    wait_for_another();
    raise(SIGTERM);
    return 2;
  });
  const pid_t saving = start([] {
    const StopSignals guard;
    raise(SIGUSR2);
    raise(SIGUSR2);
    if (!StopSignals::take_save_request() || StopSignals::take_save_request()) return 1;
    wait_for_another();
    raise(SIGUSR2);
    return StopSignals::take_save_request() && !StopSignals::take_save_request() ? 0 : 2;
  });
  const pid_t interrupted = start([] {
    struct sigaction own = {};
    own.sa_handler = [](int) { _exit(42); };
    sigaction(SIGINT, &own, nullptr);
    { const StopSignals none(StopSignals::Kind::kInterrupt); }
    const StopSignals guard(StopSignals::Kind::kInterrupt);
    if (StopSignals::requested()) return 1;
    raise(SIGINT);
    raise(SIGINT);
    if (StopSignals::requested() != SIGINT) return 2;
    wait_for_another();
    raise(SIGINT);  // goes to who was before
    return 3;
  });
  CHECK(exit_code_of(stopped) == 128 + SIGTERM);
  CHECK(exit_code_of(saving) == 0);
  CHECK(exit_code_of(interrupted) == 42);
}

TEST_CASE("Before there is anything to save, a signal ends the program at once", "[stop]") {
  for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGINT}) {
    const int code = exit_code_of([&] {
      const StopSignals guard(StopSignals::Kind::kAllFromBegin);
      raise(SIGUSR2);
      if (StopSignals::take_save_request()) return 1;
      raise(signal);
      return 2;
    });
    CHECK(code == (signal == SIGINT ? 130 : 75));
  }
  const int code = exit_code_of([] {
    const StopSignals guard(StopSignals::Kind::kAllFromBegin);
    StopSignals::begin();
    raise(SIGUSR2);
    raise(SIGTERM);
    return StopSignals::take_save_request() && StopSignals::requested() == SIGTERM ? 0 : 1;
  });
  CHECK(code == 0);
}

TEST_CASE("Signals do nothing once the outcome is decided", "[stop]") {
  const int code = exit_code_of([] {
    {
      const StopSignals guard;
      raise(SIGUSR1);
      StopSignals::ignore_until_exit();
      for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT}) raise(signal);
    }
    for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGINT}) raise(signal);
    return StopSignals::exit_code(StopSignals::requested().value());
  });
  CHECK(code == 75);
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

TEST_CASE("What ends a program is noted alone where that is asked", "[stop]") {
  for (const int number : {SIGTERM, SIGHUP}) {
    CHECK(exit_code_of([&] {
            signal(number, SIG_DFL);  // the test framework has handlers
            const StopSignals guard(StopSignals::Kind::kInterrupt);
            raise(number);
            if (StopSignals::requested() != number) return 1;
            StopSignals::end_by(number);
          }) == 1000 + number);
    CHECK(exit_code_of([&] {
            signal(number, SIG_DFL);
            const StopSignals guard(StopSignals::Kind::kInterrupt);
            raise(SIGINT);
            raise(number);  // a second one
            return 1;
          }) == 1000 + number);
  }
  for (const int other : {SIGUSR1, SIGUSR2}) {
    CHECK(exit_code_of([&] {
            signal(other, SIG_DFL);  // the test framework has handlers
            const StopSignals guard(StopSignals::Kind::kInterrupt);
            raise(other);
            return 1;
          }) == 1000 + other);
  }
}
