#include "host/model/memory_holders.h"

#include "support/files.h"

namespace atelier::model {

TEST_CASE("Host memory that could not be pinned is told with what it costs", "[memory_holders]") {
  CHECK(pinning_problem({}).empty());
  CHECK(pinning_problem({.host_bytes = 1 << 30}).empty());
  const std::string problem =
      pinning_problem({.host_bytes = int64_t{4} << 30, .pageable_bytes = int64_t{3} << 30});
  for (const char* part : {"3.00 GiB of 4.00 GiB", "slower", "ulimit -l"})
    CHECK_THAT(problem, Catch::Contains(part));
}

}  // namespace atelier::model
