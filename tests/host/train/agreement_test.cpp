#include "host/train/agreement.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <future>
#include <vector>

#include "atelier/error.h"

namespace atelier::train {
namespace {

using End = Attempt::End;

TEST_CASE("What follows an attempt depends on how it ended alone", "[agreement]") {
  const Agreement agreement(10);
  CHECK(agreement.decide({.end = End::kWhole}) == Decision::kKeep);
  CHECK(agreement.decide({.end = End::kStopped, .can_keep_less = true}) == Decision::kLeave);
  CHECK(agreement.decide({.end = End::kOutOfMemory, .can_keep_less = true}) == Decision::kRepeat);
  CHECK(agreement.decide({.end = End::kOutOfMemory}) == Decision::kFail);
  CHECK(agreement.decide({.end = End::kOutOfMemory, .has_moved = true, .can_keep_less = true}) ==
        Decision::kFail);
}

TEST_CASE("Skipped steps are counted, and as many in a row end the run", "[agreement]") {
  const Agreement agreement(3);
  RunCounters counters;
  for (const bool is_skipped : {true, true, false, true, true})
    agreement.count(is_skipped, 1, counters);
  CHECK(counters.skipped == 4);
  CHECK(counters.skipped_in_row == 2);
  try {
    agreement.count(true, 6, counters);
    FAIL("the third in a row is one too many");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kNumerics);
    CHECK(std::string(error.what()).find("step 6: 3 steps in a row") != std::string::npos);
  }
}

TEST_CASE("A signal ends a step that takes long, and waits for one that does not", "[agreement]") {
  const run::StopSignals signals;
  double time = 100;
  Agreement agreement(10, [&] { return time; });
  agreement.begin_step();
  time += 5;
  agreement.end_step();  // a step takes five seconds
  agreement.begin_step();
  CHECK_FALSE(agreement.should_give_up_step());
  CHECK_FALSE(agreement.should_leave());
  std::raise(SIGTERM);
  CHECK(agreement.should_leave());
  CHECK_FALSE(agreement.should_give_up_step());
  time += 9;
  CHECK_FALSE(agreement.should_give_up_step());  // longer than it took, but not ten seconds more
  CHECK_FALSE(agreement.has_given_up_step());
  time += 2;
  CHECK(agreement.should_give_up_step());
  CHECK(agreement.has_given_up_step());
}

TEST_CASE("A signal ends a step at once when the last one says that it takes long", "[agreement]") {
  const run::StopSignals signals;
  double time = 0;
  Agreement agreement(10, [&] { return time; });
  agreement.begin_step();
  time += 60;
  agreement.end_step();
  agreement.begin_step();
  std::raise(SIGINT);
  time += 51;
  CHECK_FALSE(agreement.should_give_up_step());  // nine seconds are left
  agreement.begin_step();
  time += 49;
  CHECK(agreement.should_give_up_step());  // eleven are
}

TEST_CASE("What was decided about an attempt is what everybody is told until the next one",
          "[agreement]") {
  const run::StopSignals signals;
  double time = 0;
  Agreement agreement(10, [&] { return time; });
  agreement.begin_step();
  time += 60;
  agreement.end_step();
  agreement.begin_step();
  std::raise(SIGINT);
  time += 49;
  CHECK(agreement.should_give_up_step());
  time += 2;  // it would have ended soon by now
  CHECK(agreement.should_give_up_step());
  std::vector<std::future<bool>> askers;
  for (int i = 0; i < 4; ++i)
    askers.push_back(
        std::async(std::launch::async, [&] { return agreement.should_give_up_step(); }));
  for (std::future<bool>& asker : askers) CHECK(asker.get());
  CHECK(agreement.decide({.end = End::kStopped}) == Decision::kLeave);
  agreement.begin_step();
  CHECK_FALSE(agreement.has_given_up_step());
}

TEST_CASE("A request to save is answered once", "[agreement]") {
  const run::StopSignals signals;
  Agreement agreement(10);
  std::raise(SIGUSR2);
  CHECK(agreement.should_save());
  CHECK_FALSE(agreement.should_save());
  CHECK_FALSE(agreement.should_leave());
}

}  // namespace
}  // namespace atelier::train
