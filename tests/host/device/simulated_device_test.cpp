#include "host/device/simulated_device.h"

#include "tests/support/files.h"

namespace atelier::device {

TEST_CASE("A simulated device is named with its memory and its rate", "[simulated]") {
  CHECK_FALSE(parse_simulated_device("cpu"));
  CHECK_FALSE(parse_simulated_device("cuda:1"));

  const auto free = parse_simulated_device("simulated");
  REQUIRE(free);
  CHECK(free->capacity == INT64_MAX);
  CHECK(free->bytes_per_second == 0);

  const auto limited = parse_simulated_device("simulated:512MiB");
  REQUIRE(limited);
  CHECK(limited->capacity == int64_t{512} << 20);
  CHECK(limited->bytes_per_second == 0);

  const auto slow = parse_simulated_device("simulated:1.5GB:4GiB/s");
  REQUIRE(slow);
  CHECK(slow->capacity == 1'500'000'000);
  CHECK(slow->bytes_per_second == 4.0 * (1 << 30));
}

TEST_CASE("A simulated device of no size is refused by name", "[simulated]") {
  for (const char* name :
       {"simulated:", "simulated:12", "simulated:0GiB", "simulated:-1GiB", "simulated:1TB",
        "simulated:1GiB:", "simulated:1GiB:4", "simulated:1GiB:4GB", "simulated:1GiB:0GB/s",
        "simulated:1GiB:4GB/s:2", "simulated 1GiB"}) {
    INFO(name);
    test::expect_error(ErrorCode::kInvalidArgument,
                       {"--device \"" + std::string(name) + "\" is not known"},
                       [&] { parse_simulated_device(name); });
  }
}

}  // namespace atelier::device
