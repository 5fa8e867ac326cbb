#include "host/run/stop.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <unistd.h>

namespace atelier::run {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;  // of a second
constexpr int64_t kOneSignal = 2 * kNanoseconds;
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr size_t kInterrupts = 3;  // of them, those of kInterrupt

// NOLINTBEGIN(*-non-const-global-variables): a signal handler has no other way to know
std::atomic<int> requested_signal = 0;
std::atomic<int> save_requests = 0;
std::atomic<bool> has_begun = true;
std::array<std::atomic<int64_t>, NSIG> noted_at = {};  // by signal; 0: it has not come
static_assert(std::atomic<int64_t>::is_always_lock_free, "the handlers may take no lock");

std::array<struct sigaction, kSignals.size()> previous_actions;
size_t num_taken = 0;  // of kSignals
bool is_over = false;  // signals do nothing any more
// NOLINTEND(*-non-const-global-variables)

// Whether a signal is another copy of the one that was noted.
bool is_copy(int signal) {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t at = now.tv_sec * kNanoseconds + now.tv_nsec;
  const int64_t before = noted_at[static_cast<size_t>(signal)];
  if (before != 0 && at - before < kOneSignal) return true;
  noted_at[static_cast<size_t>(signal)] = at;
  return false;
}

extern "C" void on_stop_signal(int signal) {
  if (!has_begun) _exit(StopSignals::exit_code(signal));
  if (is_copy(signal)) return;
  int none = 0;
  if (!requested_signal.compare_exchange_strong(none, signal)) _exit(128 + signal);
}

extern "C" void on_noted_interrupt(int signal) {
  if (is_copy(signal)) return;
  if (requested_signal.exchange(signal) == 0) return;
  const auto* const taken = std::ranges::find(kSignals, signal);
  sigaction(signal, &previous_actions[static_cast<size_t>(taken - kSignals.begin())], nullptr);
  raise(signal);
}

extern "C" void on_save_signal(int signal) {
  if (has_begun && !is_copy(signal)) ++save_requests;
}

}  // namespace

StopSignals::StopSignals(Kind kind) {
  requested_signal = 0;
  save_requests = 0;
  is_over = false;
  has_begun = kind != Kind::kAllFromBegin;
  for (auto& time : noted_at) time = 0;
  num_taken = kind == Kind::kInterrupt ? kInterrupts : kSignals.size();
  for (size_t i = 0; i < num_taken; ++i) {
    struct sigaction action = {};
    action.sa_handler = kind == Kind::kInterrupt ? on_noted_interrupt
                        : kSignals[i] == SIGUSR2 ? on_save_signal
                                                 : on_stop_signal;
    // Reads and writes of libraries go on, unless the user is to be heard at a prompt.
    action.sa_flags = kind == Kind::kInterrupt ? 0 : SA_RESTART;
    sigaction(kSignals[i], &action, &previous_actions[i]);
    const bool is_to_stay = kSignals[i] == SIGHUP && previous_actions[i].sa_handler == SIG_IGN;
    if (is_to_stay) sigaction(kSignals[i], &previous_actions[i], nullptr);  // as nohup asks
  }
}

StopSignals::~StopSignals() {
  if (is_over) return;
  for (size_t i = 0; i < num_taken; ++i) sigaction(kSignals[i], &previous_actions[i], nullptr);
}

void StopSignals::begin() {
  has_begun = true;
}

void StopSignals::ignore_until_exit() {
  is_over = true;
  for (const int number : kSignals) signal(number, SIG_IGN);
}

std::optional<int> StopSignals::requested() {
  const int signal = requested_signal;
  return signal == 0 ? std::nullopt : std::optional(signal);
}

int StopSignals::exit_code(int signal) {
  return signal == SIGINT ? 130 : 75;
}

void StopSignals::end_by(int number) {
  signal(number, SIG_DFL);
  raise(number);
  _exit(128 + number);  // of one that is blocked
}

bool StopSignals::take_save_request() {
  int waiting = save_requests;
  while (waiting > 0)
    if (save_requests.compare_exchange_weak(waiting, waiting - 1)) return true;
  return false;
}

}  // namespace atelier::run
