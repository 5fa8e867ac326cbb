#include "memory/host_pages.h"

#include <algorithm>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "support/catch.h"

namespace atelier::memory {
namespace {

// How many of a range's pages are in memory.
int64_t present(const void* data, size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> found((bytes + page - 1) / page);
  REQUIRE(mincore(const_cast<void*>(data), bytes, found.data()) == 0);
  return std::ranges::count_if(found, [](unsigned char flags) { return (flags & 1) != 0; });
}

}  // namespace

TEST_CASE("Pages of the host are there, zero and ours", "[memory]") {
  const int64_t page = sysconf(_SC_PAGESIZE);
  // In one part and in several, of large pages and of what is less than one.
  for (const int64_t bytes : {int64_t{1}, page, 3 * page + 5, int64_t{2} << 20,
                              (int64_t{2} << 20) + 1, (int64_t{200} << 20) + 4097}) {
    const std::shared_ptr<void> pages = take_host_pages(bytes);
    auto* const data = static_cast<unsigned char*>(pages.get());
    CHECK(present(data, static_cast<size_t>(bytes)) == (bytes + page - 1) / page);
    CHECK(reinterpret_cast<uintptr_t>(data) % (bytes < 2 << 20 ? page : 2 << 20) == 0);
    CHECK(std::ranges::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0; }));
    std::memset(data, 7, static_cast<size_t>(bytes));
  }
}

TEST_CASE("More pages than there are is an error of the host's memory", "[memory]") {
  REQUIRE_THROWS_WITH(take_host_pages(int64_t{1} << 60), Catch::Contains("the host's memory"));
}

}  // namespace atelier::memory
