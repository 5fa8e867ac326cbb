#include "atelier/host/stop.h"

#include <atomic>
#include <utility>

namespace atelier::ops {
namespace {

std::atomic<const StopScope*> innermost = nullptr;

}  // namespace

StopScope::StopScope(std::function<void()> check)
    : check_(std::move(check)), outer_(innermost.exchange(this)) {}

StopScope::~StopScope() {
  innermost = outer_;
}

void check_stop() {
  if (const StopScope* scope = innermost) scope->check_();
}

}  // namespace atelier::ops
