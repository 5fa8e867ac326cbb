#include "host/optim/lr_schedule.h"

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::optim {
namespace {

TEST_CASE("A warm-up rises from zero, also before a constant rate", "[optim]") {
  for (const char* kind : {"constant", "constant_with_warmup", "linear", "cosine"}) {
    const LrSchedule schedule{.kind = kind, .warmup_steps = 4, .total_steps = 20};
    CHECK(schedule.factor(0) == 0.0);
    CHECK(schedule.factor(1) == 0.25);
    CHECK(schedule.factor(4) == 1.0);
  }
}

TEST_CASE("A rate stays at its end after the last step", "[optim]") {
  for (const char* kind : {"linear", "cosine", "cosine_with_restarts", "polynomial"}) {
    const LrSchedule schedule{
        .kind = kind, .warmup_steps = 2, .total_steps = 10, .end_factor = 0.25};
    CHECK(schedule.factor(2) == 1.0);
    CHECK(schedule.factor(9) > 0.25);
    CHECK(schedule.factor(10) == Approx(0.25));
    CHECK(schedule.factor(1000) == Approx(0.25));
  }
  const LrSchedule constant{.kind = "constant", .total_steps = 10};
  CHECK(constant.factor(1000) == 1.0);
}

TEST_CASE("A run that is all warm-up has a rate in every step", "[optim]") {
  const LrSchedule schedule{.kind = "polynomial", .warmup_steps = 5, .total_steps = 5};
  for (int64_t step = 0; step < 8; ++step) {
    CHECK(schedule.factor(step) >= 0.0);
    CHECK(schedule.factor(step) <= 1.0);
  }
}

TEST_CASE("A schedule that is none is answered with those there are", "[optim]") {
  REQUIRE_THROWS_WITH(
      check_lr_schedule({.kind = "cosin"}),
      Catch::Contains(R"("cosin" is none)") && Catch::Contains(R"("cosine_with_restarts")"));
  CHECK_NOTHROW(check_lr_schedule({.kind = "polynomial"}));
  CHECK_THROWS_AS(check_lr_schedule({.warmup_steps = -1}), Error);
  CHECK_THROWS_AS(check_lr_schedule({.num_cycles = 0}), Error);
  CHECK_THROWS_AS(check_lr_schedule({.power = -1}), Error);
  CHECK_THROWS_AS(check_lr_schedule({.end_factor = 1.5}), Error);
}

}  // namespace
}  // namespace atelier::optim
