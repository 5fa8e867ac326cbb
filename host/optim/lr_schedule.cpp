#include "host/optim/lr_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "atelier/error.h"

#include "host/report/problems.h"

namespace atelier::optim {
namespace {

constexpr std::array kKinds = {"constant", "constant_with_warmup", "linear",
                               "cosine",   "cosine_with_restarts", "polynomial"};

// The factor of the part after the warm-up, from 1 down to 0; `progress` is in [0, 1].
double decay(const LrSchedule& schedule, double progress) {
  if (schedule.kind == "linear") return 1.0 - progress;
  if (schedule.kind == "polynomial") return std::pow(1.0 - progress, schedule.power);
  double half_waves = schedule.num_cycles * progress;
  if (schedule.kind == "cosine_with_restarts") {
    if (progress >= 1.0) return 0.0;
    half_waves = std::fmod(half_waves, 1.0);
  }
  return 0.5 * (1.0 + std::cos(std::numbers::pi * half_waves));
}

}  // namespace

double LrSchedule::factor(int64_t step) const {
  if (step < warmup_steps) return static_cast<double>(step) / static_cast<double>(warmup_steps);
  if (kind.starts_with("constant")) return 1.0;
  const double progress = static_cast<double>(step - warmup_steps) /
                          static_cast<double>(std::max<int64_t>(1, total_steps - warmup_steps));
  return end_factor + (1.0 - end_factor) * decay(*this, std::min(progress, 1.0));
}

void check_lr_schedule(const LrSchedule& schedule) {
  if (std::find(kKinds.begin(), kKinds.end(), schedule.kind) == kKinds.end()) {
    const std::vector<std::string> kinds(kKinds.begin(), kKinds.end());
    throw Error(ErrorCode::kInvalidArgument,
                "learning rate schedule: " + report::list_names({schedule.kind}) + " is none",
                "use one of " + report::list_names(kinds));
  }
  const auto check = [](bool is_right, const std::string& what) {
    if (!is_right) throw Error(ErrorCode::kInvalidArgument, "learning rate schedule: " + what);
  };
  check(schedule.warmup_steps >= 0, "the number of warm-up steps is negative");
  check(std::isfinite(schedule.num_cycles) && schedule.num_cycles > 0,
        "the number of cycles is not above 0");
  check(std::isfinite(schedule.power) && schedule.power > 0, "the power is not above 0");
  check(schedule.end_factor >= 0 && schedule.end_factor <= 1,
        "the end factor is not between 0 and 1");
}

}  // namespace atelier::optim
