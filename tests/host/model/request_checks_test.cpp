#include "host/model/request_checks.h"

#include "support/files.h"

namespace atelier::model {

TEST_CASE("A GPU that has no bfloat16 is told so, with what it has", "[request_checks]") {
  for (const char* part : {"compute capability 8.0", "has 7.5"})
    CHECK_THAT(dtype_problem(at::kBFloat16, 75), Catch::Contains(part));
  CHECK(dtype_problem(at::kBFloat16, 80).empty());
  CHECK(dtype_problem(at::kBFloat16, 120).empty());
  CHECK(dtype_problem(at::kHalf, 75).empty());
  CHECK(dtype_problem(at::kFloat, 70).empty());
  CHECK(dtype_problem(at::kBFloat16, 0).empty());  // the CPU
}

}  // namespace atelier::model
