#include "host/model/memory_limits.h"

#include "atelier/error.h"

#include "support/catch.h"
#include "support/files.h"

namespace atelier::model {
namespace {

MemoryLimits limits_of(const std::vector<std::string>& words, report::Problems& problems) {
  MemoryLimits limits;
  flags::Table table;
  add_memory_flags(table, limits);
  table.read(flags::parse_flags({"test", "", table.specs()}, words), problems);
  return limits;
}

TEST_CASE("Limits of memory are sizes, auto or off", "[memory_limits]") {
  report::Problems problems;
  const MemoryLimits open = limits_of({}, problems);
  CHECK((open.plans && !open.vram && !open.host_memory && !open.is_given()));
  CHECK(open.allowed_storages.empty());

  const MemoryLimits said = limits_of(
      {"--vram", "12GiB", "--host_memory", "512MiB", "--allow_storage", "fp8,int8"}, problems);
  CHECK((said.plans && said.is_given()));
  CHECK(said.vram == int64_t{12} << 30);
  CHECK(said.host_memory == int64_t{512} << 20);
  CHECK((said.allowed_storages == std::vector{weights::Storage::kFp8, weights::Storage::kInt8}));

  const MemoryLimits off = limits_of({"--vram", "off"}, problems);
  CHECK((!off.plans && !off.vram && !off.is_given()));
  problems.throw_if_any();
}

TEST_CASE("Every limit that is none is told at once, with its flag", "[memory_limits]") {
  report::Problems problems;
  limits_of({"--vram", "much", "--host_memory", "off", "--allow_storage", "int4"}, problems);
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"--vram much is no size", "write auto, off, or a size such as 12GiB",
                      "--host_memory off is no size", "--allow_storage int4: it is not known"},
                     [&] { problems.throw_if_any(); });
}

}  // namespace
}  // namespace atelier::model
