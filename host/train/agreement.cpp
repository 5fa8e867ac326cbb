#include "host/train/agreement.h"

#include <algorithm>
#include <string>

#include "atelier/error.h"

namespace atelier::train {

namespace {

constexpr double kPatienceSeconds = 10;  // for the rest of a step when a signal came

}  // namespace

void throw_stopped() {
  throw Error(ErrorCode::kCancelled, "stopped by a signal");
}

Agreement::Agreement(int64_t max_skipped_steps, std::function<double()> now)
    : max_skipped_steps_(max_skipped_steps), now_(std::move(now)) {}

void Agreement::begin_step() {
  const std::lock_guard lock(mutex_);
  step_begin_ = now_();
  gives_up_step_ = false;
}

void Agreement::end_step() {
  const std::lock_guard lock(mutex_);
  step_seconds_ = now_() - step_begin_;
}

bool Agreement::should_give_up_step() {
  if (!should_leave()) return false;
  const std::lock_guard lock(mutex_);
  const double time = now_();
  if (signal_seen_ == 0) signal_seen_ = time;
  const double rest = step_begin_ + step_seconds_ - time;
  gives_up_step_ = gives_up_step_ || std::max(rest, time - signal_seen_) > kPatienceSeconds;
  return gives_up_step_;
}

bool Agreement::has_given_up_step() const {
  const std::lock_guard lock(mutex_);
  return gives_up_step_;
}

Decision Agreement::decide(const Attempt& attempt) const {
  switch (attempt.end) {
    case Attempt::End::kWhole:
      return Decision::kKeep;
    case Attempt::End::kStopped:
      return Decision::kLeave;
    case Attempt::End::kOutOfMemory:
      break;
  }
  return attempt.has_moved || !attempt.can_keep_less ? Decision::kFail : Decision::kRepeat;
}

void Agreement::count(bool is_skipped, int64_t step, RunCounters& counters) const {
  counters.skipped_in_row = is_skipped ? counters.skipped_in_row + 1 : 0;
  if (is_skipped) ++counters.skipped;
  if (counters.skipped_in_row < std::max<int64_t>(max_skipped_steps_, 1)) return;
  throw Error(ErrorCode::kNumerics,
              "step " + std::to_string(step) + ": " + std::to_string(counters.skipped_in_row) +
                  " steps in a row were not finite",
              "use a lower --learning_rate; what was saved before is whole");
}

}  // namespace atelier::train
