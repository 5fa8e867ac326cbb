#include "host/train/agreement.h"

#include <csignal>
#include <future>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "host/distributed/group.h"
#include "support/errors.h"

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
  test::expect_error(ErrorCode::kNumerics, {"step 6: 3 steps in a row"},
                     [&] { agreement.count(true, 6, counters); });
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

TEST_CASE("What processes use is the mean of what they waited and sent, and the largest peak",
          "[agreement]") {
  using distributed::Group;
  const auto nothing = [](int /*rank*/, int /*size*/) {
    return c10::intrusive_ptr<c10d::Backend>();
  };
  const auto group = Group::meet({.rank = 1, .size = 3}, {.transport = nothing});
  Agreement agreement(10, memory::seconds_now, group.get());
  const Usage mine = {.waited_for_samples = 3,
                      .waited_for_others = 6,
                      .sent_bytes = 90,
                      .peak_host_bytes = 10,
                      .peak_device_bytes = 20};
  CHECK(agreement.usage_of_all(mine).sent_bytes == 90);  // as long as nobody has told anything
  agreement.gather({.seconds = 2, .usage = mine}, [](const std::vector<double>& words) {
    at::Tensor all = at::tensor(words, at::kDouble).expand({3, -1}).contiguous();
    all[0].slice(0, 5) = at::tensor({5.0, 0.0, 0.0, 60.0, 30.0, 5.0}, at::kDouble);
    all[2].slice(0, 5) = at::tensor({1.0, 0.0, 9.0, 90.0, 5.0, 40.0}, at::kDouble);
    return all;
  });
  CHECK(agreement.slowest_rank() == 0);
  Usage later = mine;
  later.sent_bytes += 10;  // since it was told
  later.peak_host_bytes = 35;
  const Usage all = agreement.usage_of_all(later);
  CHECK(all.waited_for_samples == 1);
  CHECK(all.waited_for_others == 5);
  CHECK(all.sent_bytes == 90);
  CHECK(all.peak_host_bytes == 35);
  CHECK(all.peak_device_bytes == 40);
}

}  // namespace
}  // namespace atelier::train
