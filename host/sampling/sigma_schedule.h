// The noise levels that a sampler walks through.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "atelier/schedule.h"

namespace atelier::sampling {

struct ScheduleOptions {
  int num_steps = 30;
  // Denoiser tokens of one sample: a family's dynamic shift follows the image's size.
  int64_t tokens = 0;
  int64_t frames = 1;  // latent frames that those tokens lie in
  // A constant shift a in place of the schedule's own; its terminal sigma stays.
  std::optional<double> flow_shift = {};
  // When not empty, these levels are used as they stand; num_steps, shifts and terminal are not.
  std::vector<double> sigmas = {};
};

// The factor a of s' = a s / (1 + (a - 1) s), of an image of that many tokens in that many steps.
// `frames`: latent frames that the tokens lie in.
double shift_factor(const SigmaShift& shift, int64_t tokens, int64_t steps, int64_t frames = 1);

// The shift that follows the image's size: that of the family's first schedule which has one;
// without any, the line of SigmaShift. `variant` as in find_schedule().
SigmaShift dynamic_shift(std::span<const ScheduleDefaults> schedules,
                         std::string_view variant = {});

// Returns the levels from noise to clean, the last one 0: one more than there are steps. Computed
// in double precision.
// Throws Error{kInvalidArgument} when num_steps < 1, when flow_shift, or the schedule's own shift
// of so many tokens, is not above 0 or too large to leave any steps, and when request.sigmas do not
// fall from at most 1 towards 0. Here and below the message begins with the setting that is wrong,
// "flow_shift: ", for the caller to say where it was written.
std::vector<float> make_sigmas(const ScheduleDefaults& schedule, const ScheduleOptions& request);

// What the denoiser is told of `sigmas`: whole thousandths, rounded down.
std::vector<float> whole_timesteps(std::span<const float> sigmas);

// Keeps the last steps of `sigmas`, at least one: the part `denoising_strength` of them. Sampling
// from an image or a clip starts at the first level of what is returned. From an image a part of a
// step counts as a whole one, from a clip not at all, as published pipelines have it.
// Throws Error{kInvalidArgument} unless denoising_strength is in (0, 1].
std::vector<float> keep_last_steps(std::vector<float> sigmas, double denoising_strength,
                                   bool from_clip = false);

// Returns the schedule of that name among those for a variant; the first one for an empty name. The
// variant of a denoiser that is not known is empty: then all of them are. Of several that have the
// name it is that of `solver`, which the user asks for, or else the first: a solver's levels may be
// its own. Throws Error{kNotFound} naming the schedules there are.
const ScheduleDefaults& find_schedule(std::span<const ScheduleDefaults> schedules,
                                      std::string_view name, std::string_view variant = {},
                                      std::string_view solver = {});

}  // namespace atelier::sampling
