#include "host/model/memory_holders.h"

#include "support/files.h"

namespace atelier::model {

TEST_CASE("Host memory that could not be pinned is told once, with what it costs",
          "[memory_holders]") {
  PinningProblem pinning;
  CHECK(pinning.news({}).empty());
  CHECK(pinning.news({.host_bytes = 1 << 30}).empty());
  const memory::TransferDevice::Stats stats = {.host_bytes = int64_t{4} << 30,
                                               .pageable_bytes = int64_t{3} << 30};
  const std::string problem = pinning.news(stats);
  for (const char* part : {"3.00 GiB of 4.00 GiB", "slower", "ulimit -l"})
    CHECK_THAT(problem, Catch::Contains(part));
  CHECK(pinning.news(stats).empty());
}

}  // namespace atelier::model
