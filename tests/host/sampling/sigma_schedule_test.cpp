#include "host/sampling/sigma_schedule.h"

#include <cmath>

#include "atelier/error.h"

#include "support/catch.h"
#include "support/errors.h"

namespace atelier::sampling {
namespace {

// Log-linear between 256 and 8192 tokens, terminal 0.02: as published with a family of large
// images.
ScheduleDefaults dynamic_schedule() {
  ScheduleDefaults schedule;
  schedule.shift = {.kind = SigmaShift::Kind::kByTokens,
                    .base = 0.5,
                    .max = 0.9,
                    .base_tokens = 256,
                    .max_tokens = 8192};
  schedule.terminal_sigma = 0.02;
  return schedule;
}

ScheduleDefaults constant_schedule(double a) {
  ScheduleDefaults schedule;
  schedule.name = "fast";
  schedule.shift = {.kind = SigmaShift::Kind::kConstant, .value = a};
  return schedule;
}

void require_levels(const std::vector<float>& got, const std::vector<double>& want,
                    size_t from = 0) {
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i, from);
    REQUIRE(got.at(from + i) == Approx(want[i]).margin(6e-7));
  }
}

TEST_CASE("A dynamic shift with a terminal level gives the published tables", "[schedule]") {
  const ScheduleDefaults schedule = dynamic_schedule();
  const auto s1024 = make_sigmas(schedule, {.num_steps = 50, .tokens = 4096});
  REQUIRE(s1024.size() == 51);
  require_levels(s1024, {1, 0.989701, 0.979192});
  require_levels(s1024, {0.058476, 0.02, 0}, 48);

  const auto s1328 = make_sigmas(schedule, {.num_steps = 50, .tokens = 6889});
  require_levels(s1328, {1, 0.990988, 0.981768});
  require_levels(s1328, {0.063783, 0.02, 0}, 48);

  const auto wide = make_sigmas(schedule, {.num_steps = 20, .tokens = 6032});
  require_levels(wide, {1, 0.974511, 0.947548});
  require_levels(wide, {0.121533, 0.02, 0}, 18);

  const auto small = make_sigmas(schedule, {.num_steps = 4, .tokens = 1024});
  REQUIRE(small.size() == 5);
  require_levels(small, {1, 0.749268, 0.432588, 0.02, 0});
}

TEST_CASE("A constant shift gives the tables of the distilled models", "[schedule]") {
  require_levels(make_sigmas(constant_schedule(3.0), {.num_steps = 4}), {1, 0.9, 0.75, 0.5, 0});
  require_levels(make_sigmas(constant_schedule(3.0), {.num_steps = 8}),
                 {1, 0.954545, 0.9, 0.833333, 0.75, 0.642857, 0.5, 0.3, 0});
  // mu = sqrt(1600 / 256), used as it is.
  const auto layered = make_sigmas(constant_schedule(2.5), {.num_steps = 50});
  require_levels(layered, {1, 0.991903, 0.983607});
  require_levels(layered, {0.094340, 0.048544, 0}, 48);
}

TEST_CASE("A shift may follow tokens and steps by the family's own function", "[schedule]") {
  ScheduleDefaults schedule;
  schedule.shift = {.kind = SigmaShift::Kind::kFunction,
                    .function = [](int64_t tokens, int64_t steps) {
                      return static_cast<double>(tokens) / static_cast<double>(steps);
                    }};
  require_levels(make_sigmas(schedule, {.num_steps = 4, .tokens = 12}), {1, 0.9, 0.75, 0.5, 0});
  require_levels(make_sigmas(schedule, {.num_steps = 4, .tokens = 4}), {1, 0.75, 0.5, 0.25, 0});
  require_levels(make_sigmas(schedule, {.num_steps = 4, .tokens = 12, .flow_shift = 1.0}),
                 {1, 0.75, 0.5, 0.25, 0});
  CHECK(shift_factor(dynamic_shift({&schedule, 1}), 500, 1000) == 0.5);
  CHECK(test::error_of([&] { make_sigmas(schedule, {.num_steps = 4, .tokens = 0}); }).code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("A shift may follow the tokens of one of several frames", "[schedule]") {
  ScheduleDefaults schedule;
  schedule.shift = {.kind = SigmaShift::Kind::kFunction, .function = [](int64_t tokens, int64_t) {
                      return static_cast<double>(tokens);
                    }};
  const auto all = make_sigmas(schedule, {.num_steps = 4, .tokens = 12, .frames = 3});
  CHECK(all == make_sigmas(constant_schedule(12.0), {.num_steps = 4}));
  schedule.shift.of_one_frame = true;
  const auto one = make_sigmas(schedule, {.num_steps = 4, .tokens = 12, .frames = 3});
  CHECK(one == make_sigmas(constant_schedule(4.0), {.num_steps = 4}));
}

TEST_CASE("The user's shift and levels replace those of the schedule", "[schedule]") {
  ScheduleDefaults plain;
  require_levels(make_sigmas(plain, {.num_steps = 4}), {1, 0.75, 0.5, 0.25, 0});
  require_levels(make_sigmas(plain, {.num_steps = 4, .flow_shift = 3.0}), {1, 0.9, 0.75, 0.5, 0});
  const auto stretched =
      make_sigmas(dynamic_schedule(), {.num_steps = 4, .tokens = 1024, .flow_shift = 3.0});
  require_levels(stretched, {1, 1 - 0.1 * 1.96, 1 - 0.25 * 1.96, 0.02, 0});
  require_levels(make_sigmas(dynamic_schedule(), {.sigmas = {0.9, 0.5}}), {0.9, 0.5, 0});
  REQUIRE(make_sigmas(plain, {.sigmas = {0.9, 0.5, 0.0}}).size() == 3);
}

TEST_CASE("A single step starts at pure noise whatever the terminal level", "[schedule]") {
  require_levels(make_sigmas(dynamic_schedule(), {.num_steps = 1, .tokens = 1024}), {1, 0});
}

TEST_CASE("Wrong schedules are refused", "[schedule]") {
  const ScheduleDefaults plain;
  REQUIRE_THROWS_AS(make_sigmas(plain, {.num_steps = 0}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.num_steps = 4, .flow_shift = 0.0}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.num_steps = 4, .flow_shift = -1.0}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.sigmas = {0.5, 0.6}}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.sigmas = {0.5, 0.5}}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.sigmas = {1.5}}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.sigmas = {0.0}}), Error);
  REQUIRE_THROWS_AS(make_sigmas(plain, {.sigmas = {std::nan("")}}), Error);
}

TEST_CASE("A shift that leaves no steps is refused, and its cause is named", "[schedule]") {
  const ScheduleOptions huge = {.num_steps = 20, .tokens = 1 << 20};
  REQUIRE_THROWS_WITH(
      make_sigmas(dynamic_schedule(), huge),
      Catch::Contains("an image of 1048576 tokens") && !Catch::Contains("flow_shift: "));
  REQUIRE_THROWS_WITH(
      make_sigmas(dynamic_schedule(), {.num_steps = 20, .tokens = int64_t{1} << 32}),
      Catch::Contains("by inf"));
  REQUIRE_THROWS_WITH(make_sigmas(dynamic_schedule(), {.num_steps = 20, .flow_shift = 1e30}),
                      Catch::StartsWith("flow_shift: 1e+30 is not above 0 and at most 1e9"));
  REQUIRE(make_sigmas(dynamic_schedule(), {.num_steps = 20, .tokens = 1 << 20, .flow_shift = 3.0})
              .size() == 21);
  const auto steep = make_sigmas(dynamic_schedule(), {.num_steps = 20, .flow_shift = 1e9});
  for (const float sigma : steep) REQUIRE(std::isfinite(sigma));
}

TEST_CASE("Denoising strength keeps the last steps, rounded up", "[schedule]") {
  const auto sigmas = make_sigmas(ScheduleDefaults{}, {.num_steps = 10});
  REQUIRE(keep_last_steps(sigmas, 1.0) == sigmas);
  for (const auto& [strength, steps] : std::vector<std::pair<double, size_t>>{
           {0.5, 5}, {0.55, 6}, {0.6, 6}, {0.01, 1}, {0.99, 10}, {0.9, 9}}) {
    const auto kept = keep_last_steps(sigmas, strength);
    CAPTURE(strength);
    REQUIRE(kept.size() == steps + 1);
    REQUIRE(kept.front() == sigmas[10 - steps]);
    REQUIRE(kept.back() == 0.0f);
  }
  REQUIRE_THROWS_AS(keep_last_steps(sigmas, 0.0), Error);
  REQUIRE_THROWS_AS(keep_last_steps(sigmas, 1.01), Error);
  REQUIRE_THROWS_AS(keep_last_steps(sigmas, std::nan("")), Error);
}

TEST_CASE("From a clip a part of a step is none", "[schedule]") {
  const auto sigmas = make_sigmas(ScheduleDefaults{}, {.num_steps = 10});
  for (const auto& [strength, steps] : std::vector<std::pair<double, size_t>>{
           {1.0, 10}, {0.5, 5}, {0.55, 5}, {0.6, 6}, {0.99, 9}, {0.01, 1}}) {
    const auto kept = keep_last_steps(sigmas, strength, /*from_clip=*/true);
    CAPTURE(strength);
    REQUIRE(kept.size() == steps + 1);
    REQUIRE(kept.front() == sigmas[10 - steps]);
  }
}

TEST_CASE("Schedules are chosen by name, and the first is the default", "[schedule]") {
  const ScheduleDefaults schedules[] = {dynamic_schedule(), constant_schedule(3.0)};
  REQUIRE(find_schedule(schedules, "").name == "default");
  REQUIRE(find_schedule(schedules, "fast").shift.value == 3.0);
  REQUIRE_THROWS_WITH(find_schedule(schedules, "fats"),
                      Catch::Contains("\"fats\"") && Catch::Contains("\"default\", \"fast\"") &&
                          Catch::Contains("did you mean fast?"));
}

TEST_CASE("A solver may have levels of its own under a schedule's name", "[schedule]") {
  const ScheduleDefaults schedules[] = {
      {.name = "default", .solver = "unipc", .grid = {.high = 0.5}},
      {.name = "other", .solver = "dpm++", .grid = {.high = 0.6}},
      {.name = "default", .solver = "dpm++", .grid = {.high = 0.7}}};
  const auto high = [&](std::string_view name, std::string_view solver) {
    return find_schedule(schedules, name, "", solver).grid.high;
  };
  REQUIRE(high("", "") == 0.5);
  REQUIRE(high("", "dpm++") == 0.7);
  REQUIRE(high("default", "dpm++") == 0.7);
  REQUIRE(high("default", "euler") == 0.5);
  REQUIRE(high("other", "unipc") == 0.6);
}

TEST_CASE("A grid need not begin at noise or lead to clean latents", "[schedule]") {
  ScheduleDefaults schedule = constant_schedule(5.0);
  schedule.grid = {.high = 0.999};  // as published with a family of clips
  require_levels(make_sigmas(schedule, {.num_steps = 50}), {0.999800, 0.995732, 0.991530});
  require_levels(make_sigmas(schedule, {.num_steps = 50}), {0.172265, 0.092507, 0}, 48);
  const std::vector<float> told = whole_timesteps(make_sigmas(schedule, {.num_steps = 4}));
  REQUIRE(told == std::vector<float>{0.999F, 0.937F, 0.833F, 0.624F, 0.0F});
}

TEST_CASE("A schedule is looked up among those for the variant", "[schedule]") {
  const ScheduleDefaults schedules[] = {
      {.name = "default", .variants = "t2v*", .num_inference_steps = 50},
      {.name = "default", .variants = "i2v", .num_inference_steps = 40},
      {.name = "fast", .variants = "i2v", .num_inference_steps = 4}};
  REQUIRE(find_schedule(schedules, "").num_inference_steps == 50);
  REQUIRE(find_schedule(schedules, "", "i2v").num_inference_steps == 40);
  REQUIRE(find_schedule(schedules, "default", "i2v").num_inference_steps == 40);
  REQUIRE(find_schedule(schedules, "fast").num_inference_steps == 4);
  REQUIRE_THROWS_WITH(find_schedule(schedules, "fast", "t2v-14b"),
                      Catch::Contains("there is no schedule \"fast\", there are \"default\""));
  REQUIRE_THROWS_WITH(find_schedule(schedules, "", "vace"),
                      Catch::Contains("no schedule for variant \"vace\""));
}

}  // namespace
}  // namespace atelier::sampling
