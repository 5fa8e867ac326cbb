#include "atelier/host/file_pages.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace atelier {

namespace {

struct Files {
  std::mutex mutex;
  std::map<uintptr_t, uintptr_t> ends;  // by begin
};

Files& files() {
  static auto* const files = new Files;  // tensors may outlive every static object
  return *files;
}

}  // namespace

void note_file(const void* begin, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(begin);
  const std::lock_guard lock(files().mutex);
  files().ends[from] = from + bytes;
}

void forget_file(const void* begin) {
  const std::lock_guard lock(files().mutex);
  files().ends.erase(reinterpret_cast<uintptr_t>(begin));
}

void give_back_pages(const at::Tensor& value) {
  if (!value.device().is_cpu() || !value.is_contiguous() || value.numel() == 0) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(value.const_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t end = (begin + value.nbytes()) / page * page;
  if (first >= end) return;
  const std::lock_guard lock(files().mutex);
  auto file = files().ends.upper_bound(begin);
  if (file == files().ends.begin() || (--file)->second < end) return;
  madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace atelier
