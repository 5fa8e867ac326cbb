#include "host/device/cpu_memory.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <malloc.h>
#include <string>
#include <unistd.h>

#include <c10/core/CPUAllocator.h>

namespace atelier::device {

namespace {
// Larger blocks are still mapped one by one: no activation is that large, and their pages cost
// little beside their use.
constexpr int kLargestKeptBytes = 1 << 30;
constexpr int kGrowthBytes = 64 << 20;

constexpr size_t kAlignment = 64;  // of LibTorch's tensors

// Blocks as LibTorch's own allocator gives them, but from malloc(). LibTorch takes
// posix_memalign(), for which the C library looks for a free block larger than what is asked for by
// the alignment: one that was freed between two others is not found for a tensor of its own size,
// and the heap grows.
class ReusingAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, at::kCPU};
    void* block = bytes <= SIZE_MAX - kAlignment ? std::malloc(bytes + kAlignment) : nullptr;
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "not enough memory for a tensor of ",
                     bytes, " bytes");
    // Past the block's begin by 16 bytes or more, where the begin is kept.
    const auto aligned = (reinterpret_cast<uintptr_t>(block) + kAlignment) & ~(kAlignment - 1);
    void** data = reinterpret_cast<void**>(aligned);
    data[-1] = block;
    return {data, data, &release, at::kCPU};
  }

  at::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* data) {
    if (data != nullptr) std::free(static_cast<void**>(data)[-1]);
  }
};

// Bytes of pages that are this process's own and in memory; 0 where the system does not say.
int64_t own_bytes() {
  int64_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

}  // namespace

void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, kLargestKeptBytes);
  mallopt(M_TRIM_THRESHOLD, kLargestKeptBytes);
  mallopt(M_TOP_PAD, kGrowthBytes);
  // Tensors may outlive every static object.
  at::SetCPUAllocator(new ReusingAllocator);
}

void release_freed_memory() {
  malloc_trim(0);
}

// Most of what is free may be pages that were never touched, or were given back.
void bound_freed_memory(int64_t most_bytes) {
  const struct mallinfo2 heap = mallinfo2();
  const auto used = static_cast<int64_t>(heap.uordblks + heap.hblkhd);
  if (static_cast<int64_t>(heap.fordblks) > most_bytes && own_bytes() - used > most_bytes)
    release_freed_memory();
}

void keep_kernels(int64_t most) {
  for (const char* name : {"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"})
    setenv(name, std::to_string(most).c_str(), /*overwrite=*/0);
}

}  // namespace atelier::device
