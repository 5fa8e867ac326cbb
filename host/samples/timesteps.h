// Which noise levels a run trains on, and how much each counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "atelier/schedule.h"

namespace atelier::samples {

// kUniform, kLogitNormal and kMode draw a level of the table, with the densities of diffusers; the
// others draw sigma itself from all of (0, 1), as kohya's trainers do.
enum class TimestepSampling {
  kUniform,
  kLogitNormal,
  kSigmoid,
  kShift,
  kMode,
  kUniformDynamicShift,  // uniform sigma, then shifted as images of that size are
  kSigmoidDynamicShift,  // the same of kSigmoid
};
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
  // kLogitNormal: above 0 the mean moves towards clean levels.
  double logit_mean = 0.0, logit_std = 1.0;
  double sigmoid_scale = 1.0;        // kSigmoid, kShift, kSigmoidDynamicShift
  double mode_scale = 1.29;          // kMode; -1 to 1.75: more of the middle when above 0
  double discrete_flow_shift = 1.0;  // kShift: above 1 moves towards noise
  // Part of the table that is drawn from, by position from pure noise (0) to clean (1). What falls
  // outside is as if it were drawn again: within, the shape of the distribution stays.
  double min_timestep_boundary = 0.0, max_timestep_boundary = 1.0;
};

struct Timestep {
  float sigma;    // in (0, 1]
  double weight;  // of the loss
};

// The family's table of 1000 levels and the draws from it. Immutable.
//
// Several denoisers share the levels: a step is of one of them, drawn with the chance that a level
// of all has to be one of its own. So all steps together draw from the whole distribution.
class Timesteps {
 public:
  // `dynamic_shift`: of the dynamic kinds of sampling, sampling::dynamic_shift() of the family.
  // Throws Error{kInvalidArgument} naming the flag of an option that makes no sense, and
  // Error{kUnsupported} when the schedule's shift follows the size of images.
  // `ranges`: of the denoisers that are trained, that of the noisiest levels first; other levels
  // are as if outside the boundaries. A level that two share is the first one's.
  Timesteps(const ScheduleDefaults& schedule, const TimestepOptions& options,
            const SigmaShift& dynamic_shift = {.kind = SigmaShift::Kind::kByTokens},
            const std::vector<SigmaRange>& ranges = {{}});

  // The table, from pure noise to nearly clean.
  const std::vector<float>& sigmas() const { return sigmas_; }

  // How likely a step is of each denoiser, by their places in `ranges`.
  const std::vector<double>& shares() const { return shares_; }
  // The denoiser of a step; `seed` of the stream kDenoiser.
  size_t draw_denoiser(uint64_t seed, uint32_t step) const;
  // Whether draw() is told the tokens of one frame, see SigmaShift::of_one_frame.
  bool counts_one_frame() const { return dynamic_shift_.of_one_frame; }

  // Draws for one sample of one step, a level of `denoiser`; `seed` of the stream kTimestep.
  // `tokens` of the image count where the shift follows them. Sigma is at least 0.001.
  Timestep draw(uint64_t seed, uint32_t sample, uint32_t step, int64_t tokens = 0,
                size_t denoiser = 0) const;

  // The levels in the middle of `count` equal parts of what is between the boundaries: a fixed grid
  // for validation. Throws Error{kInvalidArgument} when count is below 1.
  std::vector<Timestep> grid(int64_t count) const;

 private:
  // What is between the boundaries of the levels of one denoiser.
  struct Levels {
    int64_t first, last;  // in the table, last excluded
    double low, high;     // sigma is drawn in between
  };
  Levels levels_of(const SigmaRange& range, int64_t first, int64_t last) const;
  void measure_bell();
  // What is drawn, without boundaries: a position in the table, or sigma.
  double quantile(double probability, double shift) const;
  double probability(double value, double shift) const;
  double shift_of(int64_t tokens) const;
  // The cumulative chances of what lies between the ends of a part.
  std::pair<double, double> chances(const Levels& levels, double shift) const;
  bool draws_sigma() const;
  Timestep at_sigma(double sigma) const;

  TimestepOptions options_;
  SigmaShift dynamic_shift_;
  std::vector<float> sigmas_;
  std::vector<Levels> levels_;  // by denoiser
  std::vector<double> shares_;
  double bell_floor_, bell_scale_;  // kBsmntw
};

}  // namespace atelier::samples
