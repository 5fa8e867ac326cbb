// Which noise levels a run trains on, and how much each counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "atelier/schedule.h"

namespace atelier::train {

enum class TimestepSampling { kUniform, kLogitNormal, kSigmoid, kShift, kMode };
// The weight of a sample's loss by its noise level.
enum class Weighting {
  kBsmntw,     // a bell over the 1000 levels of the table, 0 at pure noise, mean 1
  kNone,       // 1
  kSigmaSqrt,  // 1 / sigma^2 (diffusers' sigma_sqrt)
  kCosmap,     // 2 / (pi (1 - 2 sigma + 2 sigma^2))
};

struct TimestepOptions {
  TimestepSampling sampling = TimestepSampling::kUniform;
  Weighting weighting = Weighting::kBsmntw;
  double logit_mean = 0.0, logit_std = 1.0;  // kLogitNormal
  double sigmoid_scale = 1.0;                // kSigmoid, kShift
  double mode_scale = 1.29;                  // kMode
  double discrete_flow_shift = 1.0;          // kShift
  // Part of the table that is drawn from, by position from pure noise (0) to clean (1).
  double min_timestep_boundary = 0.0, max_timestep_boundary = 1.0;
};

struct Timestep {
  float sigma;    // in (0, 1]
  double weight;  // of the loss
};

// The family's table of 1000 levels and the draws from it. Immutable.
class Timesteps {
 public:
  // Throws Error{kInvalidArgument} naming the flag of an option that makes no sense.
  Timesteps(const ScheduleDefaults& schedule, const TimestepOptions& options);

  // The table, from pure noise to nearly clean.
  const std::vector<float>& sigmas() const { return sigmas_; }

  // Of one sample of one step; `seed` of the stream kTimestep.
  Timestep draw(uint64_t seed, uint32_t sample, uint32_t step) const;

  // The levels in the middle of `count` equal parts of the table: a fixed grid for validation.
  std::vector<Timestep> grid(int64_t count) const;

 private:
  Timestep at_index(int64_t index) const;
  Timestep at_sigma(double sigma) const;
  std::vector<float> sigmas_;
  std::vector<double> weights_;  // kBsmntw, of each level
  TimestepOptions options_;
};

}  // namespace atelier::train
