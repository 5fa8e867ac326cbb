#include "host/run/stop.h"

#include <array>
#include <atomic>
#include <csignal>
#include <unistd.h>

namespace atelier::run {
namespace {

// NOLINTBEGIN(*-non-const-global-variables): a signal handler has no other way to know
std::atomic<int> requested_signal = 0;
std::atomic<int> save_requests = 0;
static_assert(std::atomic<int>::is_always_lock_free, "the handlers may take no lock");

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
std::array<struct sigaction, kSignals.size()> previous_actions;
size_t num_taken = 0;  // of kSignals
// NOLINTEND(*-non-const-global-variables)

extern "C" void on_stop_signal(int signal) {
  int none = 0;
  if (!requested_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

extern "C" void on_noted_interrupt(int signal) {
  requested_signal = signal;
  sigaction(signal, previous_actions.data(), nullptr);
}

extern "C" void on_save_signal(int) {
  ++save_requests;
}

}  // namespace

StopSignals::StopSignals(Kind kind) {
  requested_signal = 0;
  save_requests = 0;
  num_taken = kind == Kind::kInterrupt ? 1 : kSignals.size();
  for (size_t i = 0; i < num_taken; ++i) {
    struct sigaction action = {};
    action.sa_handler = kind == Kind::kInterrupt ? on_noted_interrupt
                        : kSignals[i] == SIGUSR2 ? on_save_signal
                                                 : on_stop_signal;
    // Reads and writes of libraries go on, unless the user is to be heard at a prompt.
    action.sa_flags = kind == Kind::kInterrupt ? 0 : SA_RESTART;
    sigaction(kSignals[i], &action, &previous_actions[i]);
  }
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < num_taken; ++i) sigaction(kSignals[i], &previous_actions[i], nullptr);
}

std::optional<int> StopSignals::requested() {
  const int signal = requested_signal;
  return signal == 0 ? std::nullopt : std::optional(signal);
}

int StopSignals::exit_code(int signal) {
  return signal == SIGINT ? 130 : 75;
}

bool StopSignals::take_save_request() {
  int waiting = save_requests;
  while (waiting > 0)
    if (save_requests.compare_exchange_weak(waiting, waiting - 1)) return true;
  return false;
}

}  // namespace atelier::run
