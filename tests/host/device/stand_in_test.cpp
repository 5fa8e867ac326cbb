#include "host/device/stand_in.h"

#include "tests/support/files.h"

namespace atelier::device {

TEST_CASE("A stand-in is named with its memory and its rate", "[stand_in]") {
  CHECK_FALSE(parse_stand_in("cpu"));
  CHECK_FALSE(parse_stand_in("cuda:1"));

  const auto free = parse_stand_in("stand-in");
  REQUIRE(free);
  CHECK(free->capacity == INT64_MAX);
  CHECK(free->bytes_per_second == 0);

  const auto limited = parse_stand_in("stand-in:512MiB");
  REQUIRE(limited);
  CHECK(limited->capacity == int64_t{512} << 20);
  CHECK(limited->bytes_per_second == 0);

  const auto slow = parse_stand_in("stand-in:1.5GB:4GiB/s");
  REQUIRE(slow);
  CHECK(slow->capacity == 1'500'000'000);
  CHECK(slow->bytes_per_second == 4.0 * (1 << 30));
}

TEST_CASE("A stand-in of no size is refused by name", "[stand_in]") {
  for (const char* name : {"stand-in:", "stand-in:12", "stand-in:0GiB", "stand-in:-1GiB",
                           "stand-in:1TB", "stand-in:1GiB:", "stand-in:1GiB:4", "stand-in:1GiB:4GB",
                           "stand-in:1GiB:0GB/s", "stand-in:1GiB:4GB/s:2", "stand-in 1GiB"}) {
    INFO(name);
    test::expect_error(ErrorCode::kInvalidArgument,
                       {"--device \"" + std::string(name) + "\" is not known"},
                       [&] { parse_stand_in(name); });
  }
}

}  // namespace atelier::device
