#include "host/train/agreement.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <ATen/ATen.h>

namespace atelier::train {

namespace {

constexpr double kPatienceSeconds = 10;  // for the rest of a step when a signal came
constexpr double kMemory = 0.9;          // of seconds, from step to step

// What is told of it.
constexpr std::array kUsage = {&Usage::waited_for_samples, &Usage::waited_for_others,
                               &Usage::sent_bytes, &Usage::peak_host_bytes,
                               &Usage::peak_device_bytes};

}  // namespace

void throw_stopped() {
  throw Error(ErrorCode::kCancelled, "stopped by a signal");
}

bool is_stop() {
  try {
    throw;
  } catch (const Error& error) {
    return error.code() == ErrorCode::kCancelled;
  } catch (...) {
    return false;
  }
}

Error too_little_memory_elsewhere() {
  return {ErrorCode::kOutOfMemory, "another rank has too little memory for it",
          "what that rank says last has flags that would help"};
}

Agreement::Agreement(int64_t max_skipped_steps, std::function<double()> now,
                     distributed::Group* group)
    : max_skipped_steps_(max_skipped_steps), now_(std::move(now)), group_(group) {
  if (group_ != nullptr) seconds_by_rank_.resize(static_cast<size_t>(group_->size()));
}

int Agreement::signal() const {
  return group_ ? gathered_signal_ : run::StopSignals::requested().value_or(0);
}

bool Agreement::should_save() {
  return group_ ? std::exchange(gathered_save_, false) : run::StopSignals::take_save_request();
}

// A stop of one process ends the attempt of all; then what one cannot hold decides.
Attempt Agreement::gather(const Attempt& mine, const GatherStatus& gather_status) {
  if (group_ == nullptr) return mine;
  const auto number = [](auto value) { return static_cast<double>(value); };
  std::vector<double> numbers = {number(mine.end),
                                 number(mine.has_moved),
                                 number(mine.can_keep_less),
                                 number(run::StopSignals::requested().value_or(0)),
                                 number(run::StopSignals::take_save_request()),
                                 mine.seconds};
  const auto first_usage = std::ssize(numbers);
  for (const auto value : kUsage) numbers.push_back(mine.usage.*value);
  const at::Tensor all = gather_status(numbers);
  usage_by_rank_.resize(static_cast<size_t>(group_->size()));
  const auto told = all.accessor<double, 2>();
  Attempt attempt = {.can_keep_less = true};
  for (int rank = 0; rank < group_->size(); ++rank) {
    const auto end = static_cast<Attempt::End>(static_cast<int>(told[rank][0]));
    if (end == Attempt::End::kStopped || attempt.end == Attempt::End::kWhole) attempt.end = end;
    attempt.has_moved |= told[rank][1] != 0;
    if (end == Attempt::End::kOutOfMemory) attempt.can_keep_less &= told[rank][2] != 0;
    if (gathered_signal_ == 0) gathered_signal_ = static_cast<int>(told[rank][3]);
    gathered_save_ |= told[rank][4] != 0;
    double& seconds = seconds_by_rank_[static_cast<size_t>(rank)];
    seconds = kMemory * seconds + told[rank][5];
    for (int64_t i = 0; i < std::ssize(kUsage); ++i)
      usage_by_rank_[static_cast<size_t>(rank)].*kUsage.at(static_cast<size_t>(i)) =
          told[rank][first_usage + i];
  }
  return attempt;
}

Usage Agreement::usage_of_all(const Usage& mine) const {
  Usage all = mine;
  if (usage_by_rank_.empty()) return all;
  const Usage& told = usage_by_rank_.at(static_cast<size_t>(group_->rank()));
  const auto processes = static_cast<double>(usage_by_rank_.size());
  for (const Usage& other : usage_by_rank_) {
    for (const auto sum :
         {&Usage::waited_for_samples, &Usage::waited_for_others, &Usage::sent_bytes})
      all.*sum += (other.*sum - told.*sum) / processes;
    for (const auto peak : {&Usage::peak_host_bytes, &Usage::peak_device_bytes})
      all.*peak = std::max(all.*peak, other.*peak);
  }
  return all;
}

int Agreement::slowest_rank() const {
  return static_cast<int>(std::ranges::max_element(seconds_by_rank_) - seconds_by_rank_.begin());
}

bool Agreement::all(bool mine) const {
  if (group_ == nullptr) return mine;
  const std::vector<std::string> said = group_->gather_texts(mine ? "yes" : "no");
  return std::ranges::count(said, "yes") == std::ssize(said);
}

Attempt::End Agreement::worst(Attempt::End mine) const {
  if (group_ == nullptr) return mine;
  for (const std::string& said : group_->gather_texts(std::to_string(static_cast<int>(mine))))
    mine = std::max(mine, static_cast<Attempt::End>(std::stoi(said)));
  return mine;
}

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
  if (!is_stop_requested()) return false;
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
