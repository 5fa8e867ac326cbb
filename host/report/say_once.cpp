#include "host/report/say_once.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host/report/text.h"

namespace atelier::report {
namespace {

constexpr const char* kName = "atelier_said";

// Opened anew, so that a lock on it holds against the other processes; -1: this process shares
// nothing with others. A number of another file may be left of an outer program.
int open_shared() {
  const char* const value = std::getenv(SharedMessages::kVariable);
  const auto number = parse_number<int>(value == nullptr ? "" : value);
  if (!number || *number < 0) return -1;
  const std::string path = "/proc/self/fd/" + std::to_string(*number);
  char target[64] = {};
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  const std::string expected = std::string("/memfd:") + kName;
  if (size < 0 || !std::string_view(target, static_cast<size_t>(size)).starts_with(expected))
    return -1;
  return open(path.c_str(), O_RDWR | O_CLOEXEC | O_APPEND);
}

std::string read_all(int descriptor) {
  std::string all;
  char piece[4096];
  for (ssize_t size = 0; (size = read(descriptor, piece, sizeof(piece))) > 0;)
    all.append(piece, static_cast<size_t>(size));
  return all;
}

}  // namespace

SharedMessages::SharedMessages() : descriptor_(memfd_create(kName, 0)) {}

SharedMessages::~SharedMessages() {
  if (descriptor_ >= 0) close(descriptor_);
}

// It is noted behind writing it, under the lock: a process that dies between loses nothing.
void say_once(std::string_view text) {
  const int shared = open_shared();
  std::string entry(1, '\0');
  entry.append(text).push_back('\0');
  const bool is_said = shared >= 0 && flock(shared, LOCK_EX) == 0 &&
                       read_all(shared).find(entry) != std::string::npos;
  if (!is_said) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
    if (shared >= 0 && write(shared, entry.data(), entry.size()) < 0) {
      // it is said again then
    }
  }
  if (shared >= 0) close(shared);
}

}  // namespace atelier::report
