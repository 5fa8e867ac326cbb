#include "host/samples/timesteps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/random/counter.h"
#include "host/report/text.h"
#include "host/sampling/sigma_schedule.h"

namespace atelier::samples {
namespace {

using std::numbers::pi;

constexpr int64_t kLevels = 1000;
constexpr double kSmallestSigma = 0.001;
// Beyond, kMode's density folds over itself: 2 / (pi - 2).
constexpr double kMaxModeScale = 2.0 / (pi - 2.0);

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

// Infinite at 0 and 1.
double logit(double p) {
  p = std::clamp(p, 0.0, 1.0);
  return std::log(p) - std::log1p(-p);
}

double normal_probability(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

// The inverse of normal_probability(); within 38 of 0.
double normal_quantile(double p) {
  if (p > 0.5) return -normal_quantile(1.0 - p);
  p = std::max(p, std::numeric_limits<double>::min());
  // Newton's steps: from 0 down they approach without passing, for the function is convex there.
  double x = 0.0;
  for (int i = 0; i < 2000; ++i) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * pi);
    const double change = (normal_probability(x) - p) / density;
    x -= change;
    if (std::abs(change) <= 1e-15 * std::max(1.0, std::abs(x))) break;
  }
  return x;
}

double shifted(double sigma, double shift) {
  return shift * sigma / (1.0 + (shift - 1.0) * sigma);
}

// The density of kMode, from pure noise to clean.
double mode_quantile(double u, double scale) {
  const double s = std::sin(0.5 * pi * u);
  return u - scale * (s * s - u);
}

double mode_probability(double value, double scale) {
  double low = 0.0, high = 1.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (mode_quantile(middle, scale) < value ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

double bell(double sigma) {
  return std::exp(-2.0 * (sigma - 0.5) * (sigma - 0.5));
}

void require(bool is_right, const char* flag, double value, const std::string& what,
             const std::string& hint = {}) {
  if (is_right) return;
  throw Error(ErrorCode::kInvalidArgument,
              "--" + std::string(flag) + ": " + report::number_text(value) + " is " + what, hint);
}

bool follows_tokens(TimestepSampling sampling) {
  return sampling == TimestepSampling::kUniformDynamicShift ||
         sampling == TimestepSampling::kSigmoidDynamicShift;
}

bool is_positive(double value) {
  return value > 0.0 && std::isfinite(value);
}

void check_options(const TimestepOptions& o) {
  require(std::isfinite(o.logit_mean), "logit_mean", o.logit_mean, "no number");
  require(is_positive(o.logit_std), "logit_std", o.logit_std, "not above 0");
  require(is_positive(o.sigmoid_scale), "sigmoid_scale", o.sigmoid_scale, "not above 0");
  require(is_positive(o.discrete_flow_shift), "discrete_flow_shift", o.discrete_flow_shift,
          "not above 0");
  require(o.mode_scale >= -1.0 && o.mode_scale <= kMaxModeScale, "mode_scale", o.mode_scale,
          "outside -1 to 1.75");
  const std::string hint = "boundaries are parts of the table: 0 is pure noise, 1 is clean";
  require(o.min_timestep_boundary >= 0.0 && o.min_timestep_boundary < 1.0, "min_timestep_boundary",
          o.min_timestep_boundary, "outside 0 to 1", hint);
  require(o.max_timestep_boundary > 0.0 && o.max_timestep_boundary <= 1.0, "max_timestep_boundary",
          o.max_timestep_boundary, "outside 0 to 1", hint);
}

std::vector<float> table_of(const ScheduleDefaults& schedule) {
  if (schedule.shift.kind == SigmaShift::Kind::kByTokens) {
    throw Error(ErrorCode::kUnsupported,
                "schedule " + formats::quote_and_escape(schedule.name) +
                    ": the shift follows the size of images, and training has one for all",
                "the plugin has to give a constant one in ModelFamily::training_schedule()");
  }
  std::vector<float> sigmas = sampling::make_sigmas(schedule, {.num_steps = kLevels});
  sigmas.pop_back();
  return sigmas;
}

}  // namespace

Timesteps::Timesteps(const ScheduleDefaults& schedule, const TimestepOptions& options,
                     const SigmaShift& dynamic_shift, const std::vector<SigmaRange>& ranges)
    : options_(options), dynamic_shift_(dynamic_shift), sigmas_(table_of(schedule)) {
  check_options(options);
  const auto first = static_cast<int64_t>(options.min_timestep_boundary * kLevels);
  const auto last = static_cast<int64_t>(options.max_timestep_boundary * kLevels);
  require(first < last, "min_timestep_boundary", options.min_timestep_boundary,
          "not below --max_timestep_boundary " + report::number_text(options.max_timestep_boundary),
          "leave a part of the table in between, at least 0.001 of it");
  if (ranges.size() > 1 && follows_tokens(options.sampling))
    throw Error(ErrorCode::kUnsupported,
                "--timestep_sampling: a shift that follows each image's size, and one of several "
                "denoisers is drawn for all images of a step",
                "use shift or another one, or train one denoiser in a run");
  double sum = 0.0;
  for (const SigmaRange& range : ranges) {
    levels_.push_back(levels_of(range, levels_.empty() ? first : levels_.back().last, last));
    const auto [low_chance, high_chance] = chances(levels_.back(), shift_of(0));
    require(low_chance < high_chance, "min_timestep_boundary", options.min_timestep_boundary,
            "the begin of a part that --timestep_sampling never draws from",
            "choose other boundaries, or another distribution");
    sum += shares_.emplace_back(high_chance - low_chance);
  }
  for (double& share : shares_) share /= sum;
  measure_bell();
}

Timesteps::Levels Timesteps::levels_of(const SigmaRange& range, int64_t first, int64_t last) const {
  const auto level = [&](int64_t index) { return sigmas_[static_cast<size_t>(index)]; };
  while (first < last && level(first) > static_cast<float>(range.high)) ++first;
  while (first < last && level(last - 1) < static_cast<float>(range.low)) --last;
  require(first < last, "min_timestep_boundary", options_.min_timestep_boundary,
          "the begin of a part that a trained denoiser has no levels in",
          "leave the boundaries out, or train another denoiser alone");
  return {.first = first,
          .last = last,
          .low = std::max(range.low, last < kLevels ? double{level(last)} : 0.0),
          .high = level(first)};
}

void Timesteps::measure_bell() {
  bell_floor_ = 1.0;
  for (const float sigma : sigmas_) bell_floor_ = std::min(bell_floor_, bell(sigma));
  double sum = 0.0;
  for (const float sigma : sigmas_) sum += bell(sigma) - bell_floor_;
  bell_scale_ = kLevels / sum;
}

bool Timesteps::draws_sigma() const {
  switch (options_.sampling) {
    case TimestepSampling::kUniform:
    case TimestepSampling::kLogitNormal:
    case TimestepSampling::kMode:
      return false;
    default:
      return true;
  }
}

double Timesteps::shift_of(int64_t tokens) const {
  if (follows_tokens(options_.sampling))
    return sampling::shift_factor(dynamic_shift_, tokens, kLevels);
  return options_.sampling == TimestepSampling::kShift ? options_.discrete_flow_shift : 1.0;
}

double Timesteps::quantile(double p, double shift) const {
  const TimestepOptions& o = options_;
  switch (o.sampling) {
    case TimestepSampling::kUniform:
      return p;
    case TimestepSampling::kLogitNormal:
      return sigmoid(o.logit_mean + o.logit_std * normal_quantile(p));
    case TimestepSampling::kMode:
      return mode_quantile(p, o.mode_scale);
    case TimestepSampling::kUniformDynamicShift:
      return shifted(p, shift);
    case TimestepSampling::kSigmoid:
    case TimestepSampling::kShift:
    case TimestepSampling::kSigmoidDynamicShift:
      return shifted(sigmoid(o.sigmoid_scale * normal_quantile(p)), shift);
  }
  throw Error(ErrorCode::kInternal, "timesteps: unknown kind of sampling");
}

double Timesteps::probability(double value, double shift) const {
  const TimestepOptions& o = options_;
  switch (o.sampling) {
    case TimestepSampling::kUniform:
      return value;
    case TimestepSampling::kLogitNormal:
      return normal_probability((logit(value) - o.logit_mean) / o.logit_std);
    case TimestepSampling::kMode:
      return mode_probability(value, o.mode_scale);
    case TimestepSampling::kUniformDynamicShift:
      return shifted(value, 1.0 / shift);
    case TimestepSampling::kSigmoid:
    case TimestepSampling::kShift:
    case TimestepSampling::kSigmoidDynamicShift:
      return normal_probability(logit(shifted(value, 1.0 / shift)) / o.sigmoid_scale);
  }
  throw Error(ErrorCode::kInternal, "timesteps: unknown kind of sampling");
}

std::pair<double, double> Timesteps::chances(const Levels& levels, double shift) const {
  if (draws_sigma()) return {probability(levels.low, shift), probability(levels.high, shift)};
  return {probability(static_cast<double>(levels.first) / kLevels, shift),
          probability(static_cast<double>(levels.last) / kLevels, shift)};
}

size_t Timesteps::draw_denoiser(uint64_t seed, uint32_t step) const {
  double left = random::uniform(seed, 0, step);
  size_t denoiser = 0;
  while (denoiser + 1 < shares_.size() && left >= shares_[denoiser]) left -= shares_[denoiser++];
  return denoiser;
}

Timestep Timesteps::draw(uint64_t seed, uint32_t sample, uint32_t step, int64_t tokens,
                         size_t denoiser) const {
  const double u = random::uniform(seed, sample, step);
  const double shift = shift_of(tokens);
  const Levels& levels = levels_[denoiser];
  const auto [low_chance, high_chance] = chances(levels, shift);
  const double value = quantile(low_chance + u * (high_chance - low_chance), shift);
  if (draws_sigma())
    return at_sigma(std::clamp(value, std::max(levels.low, kSmallestSigma), levels.high));
  const auto index =
      std::clamp(static_cast<int64_t>(value * kLevels), levels.first, levels.last - 1);
  return at_sigma(sigmas_[static_cast<size_t>(index)]);
}

std::vector<Timestep> Timesteps::grid(int64_t count) const {
  require(count >= 1, "validation_timesteps", static_cast<double>(count), "below 1");
  const int64_t first = levels_.front().first, last = levels_.back().last;
  std::vector<Timestep> levels;
  for (int64_t i = 0; i < count; ++i) {
    const double part = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const auto index = first + static_cast<int64_t>(part * static_cast<double>(last - first));
    levels.push_back(at_sigma(sigmas_[static_cast<size_t>(index)]));
  }
  return levels;
}

Timestep Timesteps::at_sigma(double sigma) const {
  const auto weight = [&] {
    switch (options_.weighting) {
      case Weighting::kBsmntw:
        return (bell(sigma) - bell_floor_) * bell_scale_;
      case Weighting::kNone:
        return 1.0;
      case Weighting::kSigmaSqrt:
        return 1.0 / (sigma * sigma);
      case Weighting::kCosmap:
        return 2.0 / (pi * (1.0 - 2.0 * sigma + 2.0 * sigma * sigma));
    }
    throw Error(ErrorCode::kInternal, "timesteps: unknown kind of weighting");
  };
  return {static_cast<float>(sigma), weight()};
}

}  // namespace atelier::samples
