#include "host/samples/timesteps.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "atelier/error.h"

#include "host/random/counter.h"
#include "host/sampling/sigma_schedule.h"
#include "support/catch.h"

namespace atelier::samples {
namespace {

constexpr ScheduleDefaults kPlain = {};
// log a = 0.8, stretched to end at 0.02.
constexpr ScheduleDefaults kStretched = {
    .shift = {.kind = SigmaShift::Kind::kConstant, .value = 2.225540928492468},
    .terminal_sigma = 0.02};
constexpr ScheduleDefaults kShiftedBy5 = {
    .shift = {.kind = SigmaShift::Kind::kConstant, .value = 5.0}};

const uint64_t kSeed = random::stream_seed(42, random::Stream::kTimestep);
constexpr int kDraws = 40'000;

std::vector<double> sorted_sigmas(const Timesteps& timesteps, int64_t tokens = 0) {
  std::vector<double> sigmas;
  for (uint32_t i = 0; i < kDraws; ++i)
    sigmas.push_back(timesteps.draw(kSeed, i % 8, i / 8, tokens).sigma);
  std::sort(sigmas.begin(), sigmas.end());
  return sigmas;
}

// Largest difference between the distribution of draws and `expected`, times the root of their
// number (Kolmogorov and Smirnov): above 2 with a probability of 0.0007.
double distance(const Timesteps& timesteps, const std::function<double(double)>& expected,
                int64_t tokens = 0) {
  const auto sigmas = sorted_sigmas(timesteps, tokens);
  double furthest = 0.0;
  for (size_t i = 0; i < sigmas.size(); ++i) {
    const double want = expected(sigmas[i]);
    furthest = std::max({furthest, std::abs(want - static_cast<double>(i) / kDraws),
                         std::abs(want - static_cast<double>(i + 1) / kDraws)});
  }
  return furthest * std::sqrt(double{kDraws});
}

// How often each level of the table was drawn.
std::vector<double> level_counts(const Timesteps& timesteps) {
  std::map<float, size_t> indices;
  for (size_t i = 0; i < 1000; ++i) indices[timesteps.sigmas()[i]] = i;
  REQUIRE(indices.size() == 1000);
  std::vector<double> counts(1000);
  for (uint32_t i = 0; i < kDraws; ++i) {
    ++counts[indices.at(timesteps.draw(kSeed, i % 8, i / 8).sigma)];
  }
  return counts;
}

// Shares of ten equal parts of the table.
std::vector<double> shares(const Timesteps& timesteps) {
  const auto counts = level_counts(timesteps);
  std::vector<double> parts;
  for (size_t i = 0; i < 10; ++i) {
    const auto begin = counts.begin() + static_cast<std::ptrdiff_t>(100 * i);
    parts.push_back(std::accumulate(begin, begin + 100, 0.0) / kDraws);
  }
  return parts;
}

void require_shares(const Timesteps& timesteps, const std::vector<double>& want) {
  const auto got = shares(timesteps);
  for (size_t i = 0; i < 10; ++i) {
    CAPTURE(i);
    // Five standard deviations.
    REQUIRE(got[i] == Approx(want[i]).margin(5.0 * std::sqrt(want[i] / kDraws) + 1e-4));
  }
}

double normal_probability(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

double logit(double p) {
  return std::log(p / (1.0 - p));
}

std::string message_of(const ScheduleDefaults& schedule, const TimestepOptions& options) {
  try {
    const Timesteps timesteps(schedule, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("The table has 1000 levels and ends above 0", "[timesteps]") {
  // u = 1 - numpy.arange(1000) / 1000; s = a u / (1 + (a - 1) u) with a = e^0.8, or 5;
  // for the first 1 - (1 - s) 0.98 / (1 - s[-1]).
  const Timesteps stretched(kStretched, {}), shifted(kShiftedBy5, {});
  const size_t indices[] = {0, 1, 250, 500, 750, 999};
  const double want_stretched[] = {1, 0.999558433, 0.872055298, 0.69549814, 0.436125431, 0.02};
  const double want_shifted[] = {1, 0.99979984, 0.9375, 0.833333333, 0.625, 0.00498008};
  REQUIRE(stretched.sigmas().size() == 1000);
  REQUIRE(shifted.sigmas().size() == 1000);
  for (size_t i = 0; i < 6; ++i) {
    REQUIRE(stretched.sigmas()[indices[i]] == Approx(want_stretched[i]).margin(1e-7));
    REQUIRE(shifted.sigmas()[indices[i]] == Approx(want_shifted[i]).margin(1e-7));
  }
  REQUIRE(Timesteps(kPlain, {}).sigmas().back() == 0.001f);
}

// The weight of every level, by its place in the table.
std::vector<double> weights_of(const ScheduleDefaults& schedule, Weighting weighting) {
  const Timesteps timesteps(schedule, {.weighting = weighting});
  std::vector<double> weights;
  for (const Timestep& level : timesteps.grid(1000)) weights.push_back(level.weight);
  return weights;
}

TEST_CASE("The bell of weights is 0 at pure noise and has a mean of 1", "[timesteps]") {
  // t = 1000 s; y = exp(-2 ((t - 500) / 1000)^2); y -= y.min(); w = 1000 y / y.sum()
  struct Case {
    ScheduleDefaults schedule;
    double max;
    std::vector<double> want;  // of levels 0, 1, 100, 250, 500, 750, 900, 999
  };
  const std::vector<Case> cases = {
      {kStretched,
       1.6826021494,
       {0, 0.002290602, 0.241555407, 0.648450734, 1.367905819, 1.647850817, 1.031186748,
        0.10369305}},
      {kShiftedBy5,
       2.0764002847,
       {0, 0.001281331, 0.139075061, 0.397951773, 1.024861742, 1.914042667, 1.865346046,
        0.031879069}},
      {kPlain,
       1.5796048189,
       {0, 0.004869896, 0.48021471, 1.107882019, 1.579604819, 1.107882019, 0.48021471,
        0.004869896}},
  };
  const size_t indices[] = {0, 1, 100, 250, 500, 750, 900, 999};
  for (const Case& c : cases) {
    const auto weights = weights_of(c.schedule, Weighting::kBsmntw);
    for (size_t i = 0; i < 8; ++i) {
      CAPTURE(indices[i]);
      REQUIRE(weights[indices[i]] == Approx(c.want[i]).margin(2e-6));
    }
    REQUIRE(*std::max_element(weights.begin(), weights.end()) == Approx(c.max).margin(2e-6));
    REQUIRE(std::accumulate(weights.begin(), weights.end(), 0.0) == Approx(1000.0));
  }
}

TEST_CASE("The other weights are those of diffusers", "[timesteps]") {
  // diffusers.training_utils.compute_loss_weighting_for_sd3(name, sigmas) at 1, 0.9, 0.5, 0.25.
  const auto root = weights_of(kPlain, Weighting::kSigmaSqrt);
  const auto map = weights_of(kPlain, Weighting::kCosmap);
  const size_t indices[] = {0, 100, 500, 750};
  const double want_root[] = {1.0, 1.23456800, 4.0, 16.0};
  const double want_map[] = {0.63661975, 0.77636564, 1.27323949, 1.01859164};
  for (size_t i = 0; i < 4; ++i) {
    REQUIRE(root[indices[i]] == Approx(want_root[i]).epsilon(1e-6));
    REQUIRE(map[indices[i]] == Approx(want_map[i]).epsilon(1e-6));
  }
  for (const double weight : weights_of(kStretched, Weighting::kNone)) REQUIRE(weight == 1.0);
}

TEST_CASE("A draw has the weight of its level", "[timesteps]") {
  for (const auto sampling : {TimestepSampling::kUniform, TimestepSampling::kSigmoid}) {
    const Timesteps timesteps(kStretched, {.sampling = sampling});
    const auto levels = timesteps.grid(1000);
    for (uint32_t step = 0; step < 200; ++step) {
      const Timestep drawn = timesteps.draw(kSeed, 0, step);
      // The weight of the level next to it, towards noise.
      const auto level = std::find_if(levels.begin(), levels.end(),
                                      [&](const Timestep& t) { return t.sigma <= drawn.sigma; });
      if (level == levels.end()) continue;  // cleaner than the table
      REQUIRE(drawn.weight == Approx(level->weight).margin(0.01));
    }
  }
}

TEST_CASE("Uniform draws find every level equally often", "[timesteps]") {
  const auto counts = level_counts(Timesteps(kStretched, {}));
  double chi_square = 0.0;
  for (const double count : counts) chi_square += std::pow(count - 40.0, 2) / 40.0;
  // 999 degrees of freedom, standard deviation 44.7.
  REQUIRE(std::abs(chi_square - 999.0) < 200.0);
}

TEST_CASE("Logit-normal and mode draws have the densities of diffusers", "[timesteps]") {
  // u = diffusers.training_utils.compute_density_for_timestep_sampling(name, 2_000_000, ...)
  // torch.histc((u * 1000).long().float(), 10, 0, 1000) / 2_000_000, seed 0
  require_shares(
      Timesteps(kStretched, {.sampling = TimestepSampling::kLogitNormal}),
      {0.01407, 0.06892, 0.11553, 0.14431, 0.15793, 0.15723, 0.14396, 0.1155, 0.06861, 0.01396});
  require_shares(
      Timesteps(kShiftedBy5,
                {.sampling = TimestepSampling::kLogitNormal, .logit_mean = 0.5, .logit_std = 0.7}),
      {5e-05, 0.00345, 0.02348, 0.07087, 0.13955, 0.20852, 0.24446, 0.2068, 0.09514, 0.00769});
  require_shares(
      Timesteps(kStretched, {.sampling = TimestepSampling::kMode}),
      {0.04685, 0.05484, 0.06893, 0.10016, 0.22943, 0.22932, 0.10005, 0.06902, 0.05485, 0.04655});
  require_shares(
      Timesteps(kPlain, {.sampling = TimestepSampling::kMode, .mode_scale = -0.5}),
      {0.14734, 0.10412, 0.08854, 0.08166, 0.07823, 0.07835, 0.0812, 0.08836, 0.1046, 0.1476});
}

TEST_CASE("Sigmoid and shift draw sigma itself, whatever the table", "[timesteps]") {
  for (const double scale : {1.0, 0.5}) {
    const Timesteps sigmoid(kStretched,
                            {.sampling = TimestepSampling::kSigmoid, .sigmoid_scale = scale});
    REQUIRE(distance(sigmoid, [&](double s) { return normal_probability(logit(s) / scale); }) <
            2.0);
    for (const double shift : {1.0, 3.0, 0.5}) {
      CAPTURE(scale, shift);
      const Timesteps shifted(kPlain, {.sampling = TimestepSampling::kShift,
                                       .sigmoid_scale = scale,
                                       .discrete_flow_shift = shift});
      // s = shift x / (1 + (shift - 1) x) is an addition of log(shift) to the logit.
      REQUIRE(distance(shifted, [&](double s) {
                return normal_probability((logit(s) - std::log(shift)) / scale);
              }) < 2.0);
    }
  }
}

TEST_CASE("Dynamic shifts follow the number of tokens", "[timesteps]") {
  // log of the shift: on the line through (256, 0.5) and (4096, 1.15).
  const std::pair<int64_t, double> cases[] = {{256, 0.5}, {4096, 1.15}, {1024, 0.63}};
  const Timesteps uniform(kPlain, {.sampling = TimestepSampling::kUniformDynamicShift});
  const Timesteps sigmoid(
      kPlain, {.sampling = TimestepSampling::kSigmoidDynamicShift, .sigmoid_scale = 0.5});
  for (const auto& [tokens, mu] : cases) {
    CAPTURE(tokens);
    const auto of_uniform = [&, mu = mu](double s) { return s / (s + std::exp(mu) * (1.0 - s)); };
    CHECK(distance(uniform, of_uniform, tokens) < 2.0);
    const auto of_sigmoid = [&, mu = mu](double s) {
      return normal_probability((logit(s) - mu) / 0.5);
    };
    CHECK(distance(sigmoid, of_sigmoid, tokens) < 2.0);
  }
}

TEST_CASE("Dynamic shifts are on the line of the family", "[timesteps]") {
  const SigmaShift line = {.kind = SigmaShift::Kind::kByTokens, .max = 0.9, .max_tokens = 8192};
  const ScheduleDefaults schedules[] = {kStretched, {.shift = line}, {}};
  const Timesteps timesteps(kPlain, {.sampling = TimestepSampling::kUniformDynamicShift},
                            sampling::dynamic_shift(schedules));
  for (const auto& [tokens, mu] : {std::pair(256, 0.5), std::pair(8192, 0.9)}) {
    const auto expected = [shift = std::exp(mu)](double s) { return s / (s + shift * (1.0 - s)); };
    CHECK(distance(timesteps, expected, tokens) < 2.0);
  }
  // A family without one has the usual line.
  CHECK(sampling::shift_factor(sampling::dynamic_shift({&kStretched, 1}), 4096, 1000) ==
        Approx(std::exp(1.15)));
}

TEST_CASE("Draws stay in (0, 1] where the distribution is extreme", "[timesteps]") {
  const Timesteps timesteps(kPlain, {.sampling = TimestepSampling::kSigmoid,
                                     .weighting = Weighting::kSigmaSqrt,
                                     .sigmoid_scale = 100.0});
  const auto sigmas = sorted_sigmas(timesteps);
  REQUIRE(sigmas.front() == Approx(0.001));
  REQUIRE(sigmas.back() == 1.0);
  for (uint32_t step = 0; step < 1000; ++step) {
    const Timestep drawn = timesteps.draw(kSeed, 0, step);
    REQUIRE(drawn.weight >= 1.0);
    REQUIRE(drawn.weight <= 1.001e6);
  }
}

TEST_CASE("Boundaries cut out a part of the table", "[timesteps]") {
  // int(0.358 * 1000) to int(0.875 * 1000) - 1.
  const TimestepOptions base = {.min_timestep_boundary = 0.358, .max_timestep_boundary = 0.875};
  const auto counts = level_counts(Timesteps(kShiftedBy5, base));
  for (size_t i = 0; i < 1000; ++i) REQUIRE((counts[i] > 0) == (i >= 358 && i < 875));

  for (const auto sampling : {TimestepSampling::kLogitNormal, TimestepSampling::kMode,
                              TimestepSampling::kSigmoid, TimestepSampling::kShift}) {
    TimestepOptions options = base;
    options.sampling = sampling;
    const Timesteps timesteps(kShiftedBy5, options);
    const auto sigmas = sorted_sigmas(timesteps);
    CAPTURE(static_cast<int>(sampling));
    REQUIRE(sigmas.back() <= timesteps.sigmas()[358]);
    REQUIRE(sigmas.front() >= timesteps.sigmas()[875]);
    REQUIRE(sigmas.back() > timesteps.sigmas()[368]);
    REQUIRE(sigmas.front() < timesteps.sigmas()[865]);
  }
}

TEST_CASE("Every draw is within the levels of the denoisers that are trained", "[timesteps]") {
  for (const TimestepSampling sampling :
       {TimestepSampling::kUniform, TimestepSampling::kLogitNormal, TimestepSampling::kSigmoid,
        TimestepSampling::kShift, TimestepSampling::kMode, TimestepSampling::kUniformDynamicShift,
        TimestepSampling::kSigmoidDynamicShift}) {
    for (const SigmaRange range : {SigmaRange{0.5, 1.0}, SigmaRange{0.9, 1.0}, SigmaRange{0.0, 0.9},
                                   SigmaRange{0.31234, 0.8765}}) {
      const Timesteps timesteps({}, {.sampling = sampling}, {}, {range});
      float least = 1.0F, most = 0.0F;
      for (uint32_t step = 0; step < 5000; ++step) {
        const float sigma = timesteps.draw(3, 0, step, 256).sigma;
        least = std::min(least, sigma);
        most = std::max(most, sigma);
      }
      CHECK(least >= static_cast<float>(range.low));
      CHECK(most <= static_cast<float>(range.high));
    }
  }
}

// Ranges of much and of little noise, as several families have them.
const std::vector<SigmaRange> kExperts = {{0.875, 1.0}, {0.0, 0.875}};

TEST_CASE("Levels of all steps are those of one denoiser that has the levels of all",
          "[timesteps]") {
  const uint64_t seed = random::stream_seed(42, random::Stream::kDenoiser);
  for (const TimestepSampling sampling :
       {TimestepSampling::kUniform, TimestepSampling::kLogitNormal, TimestepSampling::kMode,
        TimestepSampling::kSigmoid, TimestepSampling::kShift}) {
    CAPTURE(static_cast<int>(sampling));
    const TimestepOptions options = {.sampling = sampling, .discrete_flow_shift = 5.0};
    const Timesteps whole(kShiftedBy5, options);
    const Timesteps apart(kShiftedBy5, options, {}, kExperts);
    REQUIRE(whole.draw_denoiser(seed, 7) == 0);
    std::vector<float> expected, drawn;
    double first = 0.0;
    for (uint32_t step = 0; step < kDraws; ++step) {
      expected.push_back(whole.draw(kSeed, 0, step).sigma);
      const size_t denoiser = apart.draw_denoiser(seed, step);
      drawn.push_back(apart.draw(kSeed, 0, step, 0, denoiser).sigma);
      REQUIRE((drawn.back() >= 0.875F) == (denoiser == 0));
      first += denoiser == 0 ? 1.0 / kDraws : 0.0;
    }
    const double share = apart.shares().front();
    REQUIRE(share + apart.shares().back() == Approx(1.0));
    REQUIRE(first == Approx(share).margin(4.0 * std::sqrt(share * (1.0 - share) / kDraws)));
    // For equal distributions the largest difference is below 2 sqrt(2 / n), see distance().
    std::sort(expected.begin(), expected.end());
    std::sort(drawn.begin(), drawn.end());
    for (size_t i = 0; i < expected.size(); i += 400) {
      const auto below = std::upper_bound(drawn.begin(), drawn.end(), expected[i]);
      const auto same = std::upper_bound(expected.begin(), expected.end(), expected[i]);
      REQUIRE(std::abs((below - drawn.begin()) - (same - expected.begin())) <
              2.0 * std::sqrt(2.0 * kDraws));
    }
  }
  REQUIRE(Timesteps(kShiftedBy5, {}, {}, kExperts).shares().front() == Approx(0.417));
}

TEST_CASE("A level that two denoisers share is the first one's", "[timesteps]") {
  const Timesteps timesteps(kPlain, {}, {}, {{0.5, 1.0}, {0.0, 0.5}});
  REQUIRE(timesteps.shares().front() == Approx(0.501));
  for (uint32_t step = 0; step < 5000; ++step) {
    REQUIRE(timesteps.draw(kSeed, 0, step, 0, 0).sigma >= 0.5F);
    REQUIRE(timesteps.draw(kSeed, 0, step, 0, 1).sigma < 0.5F);
  }
}

TEST_CASE("Each of several denoisers needs levels, and shifts that do not follow images",
          "[timesteps]") {
  const TimestepOptions high = {.max_timestep_boundary = 0.417};
  REQUIRE_THROWS_WITH(Timesteps(kShiftedBy5, high, {}, kExperts),
                      Catch::Contains("a trained denoiser has no levels in"));
  REQUIRE_THROWS_WITH(
      Timesteps(kPlain, {.sampling = TimestepSampling::kUniformDynamicShift}, {}, kExperts),
      Catch::Contains("--timestep_sampling"));
}

// DiffSynth-Studio draws `id` from int(min * 1000) to int(max * 1000) - 1, of levels that begin
// with pure noise: with u = 1 - id / 1000, sigma is 5 u / (1 + 4 u).
TEST_CASE("Boundaries of published scripts draw the levels that they draw there", "[timesteps]") {
  struct Case {
    double min, max;
    SigmaRange expert;  // that the script trains
  };
  const Case cases[] = {
      {0, 0.417, {0.875, 1}}, {0.417, 1, {0, 0.875}}, {0, 0.358, {0.9, 1}}, {0.358, 1, {0, 0.9}}};
  for (const Case& c : cases) {
    CAPTURE(c.min, c.max);
    std::set<float> theirs;
    for (int id = static_cast<int>(c.min * 1000); id < static_cast<int>(c.max * 1000); ++id) {
      const double u = 1.0 - id / 1000.0;
      theirs.insert(static_cast<float>(5.0 * u / (1.0 + 4.0 * u)));
    }
    const TimestepOptions said = {.min_timestep_boundary = c.min, .max_timestep_boundary = c.max};
    const auto levels_of = [&](const Timesteps& timesteps) {
      std::set<float> levels;
      for (const Timestep& level : timesteps.grid(static_cast<int64_t>(theirs.size())))
        levels.insert(level.sigma);
      return levels;
    };
    // By the script's boundaries, by the expert's own range, and by both.
    REQUIRE(levels_of(Timesteps(kShiftedBy5, said)) == theirs);
    REQUIRE(levels_of(Timesteps(kShiftedBy5, {}, {}, {c.expert})) == theirs);
    REQUIRE(levels_of(Timesteps(kShiftedBy5, said, {}, {c.expert})) == theirs);
  }
}

TEST_CASE("Between boundaries the shape of the distribution stays", "[timesteps]") {
  const Timesteps sigmoid(kPlain, {.sampling = TimestepSampling::kSigmoid,
                                   .min_timestep_boundary = 0.2,
                                   .max_timestep_boundary = 0.9});
  const auto whole = [](double sigma) { return normal_probability(logit(sigma)); };
  REQUIRE(distance(sigmoid, [&](double s) {
            return (whole(s) - whole(0.1)) / (whole(0.8) - whole(0.1));
          }) < 2.0);

  const auto all = shares(Timesteps(kPlain, {.sampling = TimestepSampling::kLogitNormal}));
  const auto part = shares(Timesteps(
      kPlain, {.sampling = TimestepSampling::kLogitNormal, .max_timestep_boundary = 0.5}));
  for (size_t i = 0; i < 10; ++i) {
    REQUIRE(part[i] == Approx(i < 5 ? 2.0 * all[i] : 0.0).margin(0.02));
  }
}

TEST_CASE("A draw depends on seed, sample and step alone", "[timesteps]") {
  const TimestepOptions options = {.sampling = TimestepSampling::kSigmoid};
  const Timesteps a(kPlain, options), b(kStretched, options);
  REQUIRE(a.draw(1, 2, 3).sigma == b.draw(1, 2, 3).sigma);
  std::set<float> sigmas;
  for (const uint64_t seed : {1, 2}) {
    for (uint32_t sample = 0; sample < 10; ++sample) {
      for (uint32_t step = 0; step < 10; ++step) sigmas.insert(a.draw(seed, sample, step).sigma);
    }
  }
  REQUIRE(sigmas.size() == 200);
}

TEST_CASE("The grid has the middles of equal parts between the boundaries", "[timesteps]") {
  const Timesteps timesteps(kStretched, {});
  const auto levels = timesteps.grid(4);
  REQUIRE(levels.size() == 4);
  const size_t indices[] = {125, 375, 625, 875};
  for (size_t i = 0; i < 4; ++i) REQUIRE(levels[i].sigma == timesteps.sigmas()[indices[i]]);

  const Timesteps part(kStretched, {.min_timestep_boundary = 0.5, .max_timestep_boundary = 0.502});
  const auto two = part.grid(2);
  REQUIRE(two[0].sigma == part.sigmas()[500]);
  REQUIRE(two[1].sigma == part.sigmas()[501]);
  REQUIRE(part.grid(8).size() == 8);
  REQUIRE_THROWS_WITH(part.grid(0), Catch::Contains("--validation_timesteps: 0 "));
}

TEST_CASE("Options that make no sense are told by their flag", "[timesteps]") {
  const double nan = std::nan("");
  REQUIRE_THAT(message_of(kPlain, {.logit_mean = nan}), Catch::Contains("--logit_mean: nan"));
  REQUIRE_THAT(message_of(kPlain, {.logit_std = 0.0}), Catch::Contains("--logit_std: 0 "));
  REQUIRE_THAT(message_of(kPlain, {.sigmoid_scale = -1.0}),
               Catch::Contains("--sigmoid_scale: -1 "));
  REQUIRE_THAT(message_of(kPlain, {.mode_scale = 2.0}), Catch::Contains("--mode_scale: 2 "));
  REQUIRE_THAT(message_of(kPlain, {.discrete_flow_shift = 0.0}),
               Catch::Contains("--discrete_flow_shift: 0 "));
  REQUIRE_THAT(message_of(kPlain, {.min_timestep_boundary = -0.5}),
               Catch::Contains("--min_timestep_boundary: -0.5 "));
  REQUIRE_THAT(message_of(kPlain, {.max_timestep_boundary = 875}),
               Catch::Contains("--max_timestep_boundary: 875 "));
  REQUIRE_THAT(message_of(kPlain, {.min_timestep_boundary = 0.5, .max_timestep_boundary = 0.4}),
               Catch::Contains("not below --max_timestep_boundary 0.4"));
  REQUIRE_THAT(message_of(kPlain, {.sampling = TimestepSampling::kLogitNormal,
                                   .logit_mean = 50.0,
                                   .max_timestep_boundary = 0.5}),
               Catch::Contains("never draws from"));
  REQUIRE_THAT(message_of({.shift = {.kind = SigmaShift::Kind::kByTokens}}, {}),
               Catch::Contains("training_schedule()"));
}

}  // namespace
}  // namespace atelier::samples
