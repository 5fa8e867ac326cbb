#include "host/files/mapped_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ATen.h>

#include "atelier/error.h"
#include "atelier/host/file_pages.h"

#include "host/files/file_reader.h"

namespace atelier::files {

namespace {

constexpr uint64_t kPageBytes = 4096;

// What the handler of SIGBUS may read: it runs where nothing may be allocated or locked.
struct Mapping {
  std::atomic<const char*> data{nullptr};
  uint64_t size = 0;
  std::array<char, 256> path{};
};
std::array<Mapping, 512> mappings;  // NOLINT: a signal handler has no other way to know

void remember(const std::string& path, const char* data, uint64_t size) {
  for (Mapping& mapping : mappings) {
    const char* free = nullptr;
    static const char reserved = 0;
    if (!mapping.data.compare_exchange_strong(free, &reserved)) continue;
    mapping.size = size;
    const size_t length = std::min(path.size(), mapping.path.size() - 1);
    std::memcpy(mapping.path.data(), path.data(), length);
    mapping.path[length] = 0;
    mapping.data.store(data);
    return;
  }
}

void forget(const char* data) {
  for (Mapping& mapping : mappings) {
    if (mapping.data.load() == data) mapping.data.store(nullptr);
  }
}

void write_text(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

extern "C" void on_lost_page(int, siginfo_t* info, void*) {
  const auto* address = static_cast<const char*>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const char* data = mapping.data.load();
    if (data == nullptr || address < data || address >= data + mapping.size) continue;
    write_text("\nerror: ");
    write_text(mapping.path.data());
    write_text(
        ": it became shorter, or cannot be read any more, while its weights were in use; leave "
        "model files alone while "
        "they are used [FILE_CHANGED]\n");
    _exit(3);
  }
  signal(SIGBUS, SIG_DFL);  // not ours: the fault repeats, and ends the process
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, uint64_t size) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw Error(ErrorCode::kEnvironment, display_path(path) + ": " + std::strerror(errno),
                "check the file's permissions", "FILE_OPEN");
  const off_t length = lseek(descriptor, 0, SEEK_END);
  void* data = MAP_FAILED;
  int why = 0;
  if (length == static_cast<off_t>(size)) {
    data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, descriptor, 0);
    why = errno;
  }
  close(descriptor);
  if (length != static_cast<off_t>(size))
    throw Error(ErrorCode::kDataLoss,
                display_path(path) + ": it has " + std::to_string(length) + " bytes, and had " +
                    std::to_string(size) + " when it was opened",
                "leave model files alone while they are used", "FILE_CHANGED");
  if (data == MAP_FAILED)
    throw Error(ErrorCode::kEnvironment,
                display_path(path) + ": it cannot be mapped: " + std::strerror(why),
                "check the limits on virtual memory", "FILE_MAP");
  return std::shared_ptr<const MappedFile>(new MappedFile(path, static_cast<char*>(data), size));
}

MappedFile::MappedFile(std::string path, char* data, uint64_t size)
    : path_(std::move(path)), data_(data), size_(size) {
  remember(display_path(path_), data_, size_);
  note_file(data_, size_);
}

MappedFile::~MappedFile() {
  forget_file(data_);
  forget(data_);
  munmap(data_, size_);
}

void MappedFile::populate(uint64_t begin, uint64_t bytes) const {
  const uint64_t first = begin / kPageBytes * kPageBytes;
  const uint64_t end = std::min(begin + bytes, size_);
  if (first >= end) return;
  while (madvise(data_ + first, end - first, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EFAULT)
      throw Error(ErrorCode::kDataLoss,
                  display_path(path_) + ": it became shorter, or cannot be read",
                  "it was cut while it was being read; download or copy it again", "FILE_CHANGED");
    return;  // an older kernel: pages come when they are used
  }
}

at::Tensor MappedFile::tensor(uint64_t begin, at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::from_blob(
      data_ + begin, sizes, [keep = shared_from_this()](void*) {}, at::TensorOptions(dtype));
}

void report_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace atelier::files
