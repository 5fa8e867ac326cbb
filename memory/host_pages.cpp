#include "memory/host_pages.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "atelier/error.h"

namespace atelier::memory {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

// Makes the pages that are missing.
void populate(std::byte* data, size_t bytes) {
  if (madvise(data, bytes, MADV_POPULATE_WRITE) == 0) return;
  // Kernels before 5.14 do not know that. Nothing has written here yet.
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (size_t at = 0; at < bytes; at += page) static_cast<volatile std::byte*>(data)[at] = {};
}

void populate_together(std::byte* data, size_t bytes) {
  constexpr size_t kMostThreads = 8, kLeastBytes = 32 * kLargePage;
  const size_t count = std::min({kMostThreads, bytes / kLeastBytes + 1,
                                 size_t{std::max(1U, std::thread::hardware_concurrency())}});
  const size_t part = (bytes / count + kLargePage - 1) / kLargePage * kLargePage;
  std::vector<std::jthread> others;
  for (size_t begin = part; begin < bytes; begin += part)
    others.emplace_back(populate, data + begin, std::min(part, bytes - begin));
  populate(data, std::min(part, bytes));
}

}  // namespace

std::shared_ptr<void> take_host_pages(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  const size_t room = size < kLargePage ? size : size + kLargePage;
  void* const mapped =
      mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    throw Error(ErrorCode::kOutOfMemory,
                "the host's memory: it has no " + std::to_string(bytes) + " bytes",
                "free some, or leave weights on disk");
  void* data = mapped;
  if (size >= kLargePage) {
    size_t left = room;
    std::align(kLargePage, size, data, left);
    madvise(data, size, MADV_HUGEPAGE);
  }
  populate_together(static_cast<std::byte*>(data), size);
  return {data, [mapped, room](void*) { munmap(mapped, room); }};
}

}  // namespace atelier::memory
