#include "host/progress/interrupt.h"

#include <csignal>

namespace atelier::progress {
namespace {

volatile std::sig_atomic_t is_interrupted = 0;
struct sigaction previous_action;

// The second signal goes to whoever was there before.
void on_interrupt(int) {
  is_interrupted = 1;
  sigaction(SIGINT, &previous_action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  is_interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: a read that waits for input is woken
  sigaction(SIGINT, &action, &previous_action);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &previous_action, nullptr);
}

bool InterruptGuard::is_requested() {
  return is_interrupted != 0;
}

}  // namespace atelier::progress
