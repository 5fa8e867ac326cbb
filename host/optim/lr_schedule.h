// Learning rates over a run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace atelier::optim {

// Names as in diffusers: "constant", "constant_with_warmup", "linear", "cosine",
// "cosine_with_restarts", "polynomial".
struct LrSchedule {
  std::string kind = "constant";
  int64_t warmup_steps = 0;  // the rate rises linearly from 0; also before "constant"
  int64_t total_steps = 0;   // at which the rate has reached its end; the constant kinds ignore it
  double num_cycles = 1.0;   // cosine_with_restarts: how many; cosine: half of one by default
  double power = 1.0;        // polynomial
  double end_factor = 0.0;   // what the rate falls to, as a part of the rate

  // Factor of the learning rate in optimizer step `step`, from 0: diffusers' get_scheduler.
  double factor(int64_t step) const;
};

// Throws Error{kInvalidArgument} naming the kinds there are.
void check_lr_schedule(const LrSchedule& schedule);

}  // namespace atelier::optim
