#include "host/sampling/sigma_schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/glob.h"
#include "host/report/problems.h"

namespace atelier::sampling {
namespace {

bool is_for(const ScheduleDefaults& schedule, std::string_view variant) {
  return variant.empty() || formats::any_glob_matches(schedule.variants, variant);
}

std::vector<float> checked_sigmas(const std::vector<double>& given) {
  std::vector<float> sigmas;
  double last = 2.0;
  for (const double sigma : given) {
    if (!(sigma >= 0.0 && sigma <= 1.0 && sigma < last)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "sigmas: " + std::to_string(sigma) + " is out of order or outside [0, 1]",
                  "give levels that fall from 1 (noise) towards 0 (clean)");
    }
    last = sigma;
    sigmas.push_back(static_cast<float>(sigma));
  }
  if (sigmas.back() != 0.0f) sigmas.push_back(0.0f);
  if (sigmas.size() < 2) {
    throw Error(ErrorCode::kInvalidArgument, "sigmas: no level above 0");
  }
  return sigmas;
}

// With larger shifts the levels of a schedule are 1 but for the last one, as far as numbers go.
constexpr double kMaxShift = 1e9;

void check_shift(double a, const ScheduleOptions& request) {
  if (a > 0.0 && a <= kMaxShift) return;
  std::array<char, 40> text = {};
  std::snprintf(text.data(), text.size(), "%g", a);
  const std::string shown = text.data();
  if (request.flow_shift)
    throw Error(ErrorCode::kInvalidArgument,
                "flow_shift: " + shown + " is not above 0 and at most 1e9");
  throw Error(ErrorCode::kInvalidArgument,
              "the schedule shifts the noise levels of an image of " +
                  std::to_string(request.tokens) + " tokens by " + shown +
                  ", which leaves no steps between noise and image",
              "use a smaller size, or say flow_shift");
}

// The nearest float32 in the same whole thousandth, so that what is told of the level does not
// depend on how it is stored.
float in_its_thousandth(double level) {
  const double thousandth = std::floor(1000.0 * level);
  auto nearest = static_cast<float>(level);
  while (std::floor(1000.0 * nearest) < thousandth) nearest = std::nextafter(nearest, 2.0F);
  while (std::floor(1000.0 * nearest) > thousandth) nearest = std::nextafter(nearest, -1.0F);
  return nearest;
}

}  // namespace

double shift_factor(const SigmaShift& shift, int64_t tokens, int64_t steps, int64_t frames) {
  if (shift.of_one_frame) tokens /= std::max<int64_t>(frames, 1);
  switch (shift.kind) {
    case SigmaShift::Kind::kNone:
      return 1.0;
    case SigmaShift::Kind::kConstant:
      return shift.value;
    case SigmaShift::Kind::kByTokens: {
      const double slope =
          (shift.max - shift.base) / static_cast<double>(shift.max_tokens - shift.base_tokens);
      return std::exp(shift.base + slope * static_cast<double>(tokens - shift.base_tokens));
    }
    case SigmaShift::Kind::kFunction:
      return shift.function(tokens, steps);
  }
  throw Error(ErrorCode::kInternal, "schedule: unknown kind of shift");
}

SigmaShift dynamic_shift(std::span<const ScheduleDefaults> schedules, std::string_view variant) {
  for (const ScheduleDefaults& schedule : schedules) {
    const SigmaShift::Kind kind = schedule.shift.kind;
    if (is_for(schedule, variant) &&
        (kind == SigmaShift::Kind::kByTokens || kind == SigmaShift::Kind::kFunction))
      return schedule.shift;
  }
  return {.kind = SigmaShift::Kind::kByTokens};
}

namespace {

// A level of the grid that has so many cells, no cleaner than `s`.
double on_cells(double s, int64_t cells) {
  constexpr double kRounding = 1e-9;  // of s * cells, which may be whole
  const auto n = static_cast<double>(cells);
  return std::ceil(s * n - kRounding) / n;
}

}  // namespace

std::vector<float> make_sigmas(const ScheduleDefaults& schedule, const ScheduleOptions& request) {
  if (!request.sigmas.empty()) return checked_sigmas(request.sigmas);
  const int n = request.num_steps;
  if (n < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "num_inference_steps: " + std::to_string(n) + " is below 1");
  }
  const double a =
      request.flow_shift.value_or(shift_factor(schedule.shift, request.tokens, n, request.frames));
  check_shift(a, request);
  std::vector<double> levels(n);
  const double step = (schedule.grid.low - schedule.grid.high) / n;
  for (int i = 0; i < n; ++i) {
    double s = schedule.grid.high + i * step;  // as NumPy rounds it
    if (schedule.grid.cells > 0) s = on_cells(s, schedule.grid.cells);
    levels[i] = a * s / (1.0 + (a - 1.0) * s);
  }
  // A single step begins and ends the grid at 1: there is nothing to stretch.
  if (schedule.terminal_sigma > 0.0 && n > 1) {
    const double scale = (1.0 - schedule.terminal_sigma) / (1.0 - levels.back());
    for (double& level : levels) level = 1.0 - (1.0 - level) * scale;
  }
  std::vector<float> sigmas;
  for (const double level : levels)
    sigmas.push_back(schedule.whole_timesteps ? in_its_thousandth(level)
                                              : static_cast<float>(level));
  sigmas.push_back(0.0f);
  return sigmas;
}

std::vector<float> whole_timesteps(std::span<const float> sigmas) {
  std::vector<float> told;
  for (const float sigma : sigmas)
    told.push_back(static_cast<float>(std::floor(1000.0 * sigma) / 1000.0));
  return told;
}

std::vector<float> keep_last_steps(std::vector<float> sigmas, double denoising_strength,
                                   bool from_clip) {
  if (!(denoising_strength > 0.0 && denoising_strength <= 1.0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "denoising_strength: " + std::to_string(denoising_strength) + " is outside (0, 1]",
                "1 makes a new image, small values stay close to what is begun from");
  }
  const auto steps = static_cast<double>(sigmas.size() - 1);
  double kept = std::min(steps * denoising_strength, steps);
  if (from_clip) kept = std::max(std::floor(kept), 1.0);
  sigmas.erase(sigmas.begin(), sigmas.begin() + static_cast<int64_t>(steps - kept));
  return sigmas;
}

const ScheduleDefaults& find_schedule(std::span<const ScheduleDefaults> schedules,
                                      std::string_view name, std::string_view variant,
                                      std::string_view solver) {
  std::vector<std::string> known;
  const ScheduleDefaults* first = nullptr;
  for (const ScheduleDefaults& schedule : schedules) {
    if (!is_for(schedule, variant)) continue;
    if (first == nullptr && (name.empty() || schedule.name == name)) first = &schedule;
    if (first != nullptr && schedule.name == first->name && schedule.solver == solver)
      return schedule;
    if (std::ranges::find(known, schedule.name) == known.end()) known.emplace_back(schedule.name);
  }
  if (first != nullptr) return *first;
  if (known.empty()) {
    throw Error(ErrorCode::kInternal,
                "the family declares no schedule" +
                    (variant.empty() ? "" : " for variant " + formats::quote_and_escape(variant)));
  }
  const std::string nearest = report::nearest_name(name, known);
  throw Error(ErrorCode::kNotFound,
              "schedule: there is no schedule " + formats::quote_and_escape(name) + ", there are " +
                  report::list_names(known),
              nearest.empty() ? "choose one of them" : "did you mean " + nearest + "?");
}

}  // namespace atelier::sampling
