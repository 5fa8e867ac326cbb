#include "host/device/cpu_memory.h"

#include <malloc.h>

namespace atelier::device {

namespace {
// Larger blocks are still mapped one by one: no activation is that large, and their pages cost
// little beside their use.
constexpr int kLargestKeptBytes = 1 << 30;
constexpr int kGrowthBytes = 64 << 20;
}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, kLargestKeptBytes);
  mallopt(M_TRIM_THRESHOLD, kLargestKeptBytes);
  mallopt(M_TOP_PAD, kGrowthBytes);
}

void release_freed_memory() {
  malloc_trim(0);
}

}  // namespace atelier::device
