#include "host/distributed/history.h"

#include <chrono>

#include "host/distributed/pace.h"
#include "support/catch.h"

using namespace atelier::distributed;

namespace {

Histories of(const std::vector<std::string>& exchanges, const std::string& group = "") {
  Histories histories;
  for (const std::string& exchange : exchanges) histories.add(group, exchange);
  return histories;
}

}  // namespace

TEST_CASE("Ranks that did the same do not differ, also where one has not come as far") {
  const std::vector<std::string> dumps = {of({"a", "b", "c"}).dump(), of({"a", "b"}).dump(), ""};
  REQUIRE_FALSE(first_difference(dumps));
  REQUIRE(ranks_behind(dumps) == std::vector<int>{1});
  REQUIRE_FALSE(first_difference({"", ""}));
  REQUIRE(ranks_behind({of({"a"}).dump(), of({"a"}).dump()}).empty());
}

TEST_CASE("The first exchange in which ranks differ is found, and who did what") {
  const auto found = first_difference(
      {"", of({"a", "b", "c", "d"}).dump(), of({"a", "b"}).dump(), of({"a", "b", "x"}).dump()});
  REQUIRE(found);
  REQUIRE(found->one == 1);
  REQUIRE(found->other == 3);
  REQUIRE(found->of_one == "c");
  REQUIRE(found->of_other == "x");
}

TEST_CASE("A difference is found when its exchange is no longer remembered") {
  std::vector<std::string> one(200, "a"), other(200, "a");
  other[3] = std::string("b");
  REQUIRE(of(one).of("") != of(other).of(""));
  REQUIRE(first_difference({of(one).dump(), of(other).dump()}));
  REQUIRE_FALSE(first_difference({of(one).dump(), of(std::vector<std::string>(190, "a")).dump()}));
}

TEST_CASE("Smaller groups are compared each by itself") {
  Histories one = of({"a"}), other = of({"a"}), late = of({"a"}), third = of({"a", "b"});
  one.add("left", "x of 5");
  other.add("right", "x of 7");
  late.add("right", "x of 7");
  other.add("right", "y");
  REQUIRE(one.last() == "x of 5");
  REQUIRE(one.of("left").first == 1);
  REQUIRE(one.of("right").first == 0);
  REQUIRE_FALSE(first_difference({one.dump(), other.dump(), late.dump(), third.dump()}));
  // Ranks 0 to 2 are behind rank 3, but it is rank 2 that another one waits for.
  REQUIRE(ranks_behind({one.dump(), other.dump(), late.dump(), third.dump()}) ==
          std::vector<int>{2});
  late.add("right", "z");
  const auto found = first_difference({one.dump(), other.dump(), late.dump(), third.dump()});
  REQUIRE(found);
  REQUIRE(found->one == 1);
  REQUIRE(found->other == 2);
  REQUIRE(found->of_other == "z");
}

TEST_CASE("An exchange may take as long as twenty median steps, and a minute at least") {
  using std::chrono::seconds;
  Pace pace;
  Pace::Time now{};
  pace.begin_step(now);
  REQUIRE_FALSE(pace.limit());
  pace.begin_step(now += seconds(1));
  REQUIRE(pace.limit() == seconds(60));
  for (int step = 0; step < 30; ++step) pace.begin_step(now += seconds(10));
  REQUIRE(pace.limit() == seconds(200));
  pace.begin_step(now += seconds(3600));  // one that saved a large model
  REQUIRE(pace.limit() == seconds(200));
}
