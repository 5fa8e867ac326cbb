#include "memory/shared_slabs.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <pthread.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "atelier/error.h"
#include "atelier/host/stop.h"

namespace atelier::memory {

namespace {

constexpr const char* kName = "atelier_slabs";
constexpr uint64_t kMagic = 0x31736261'6c736c74;
constexpr size_t kKeyBytes = 160;
constexpr int64_t kMostEntries = 1024;
constexpr int64_t kSharedAlignment = int64_t{2} << 20;  // of slabs, which may lie in huge pages
constexpr long kLookNanoseconds = 100'000'000;          // between two looks whether the run stops

constexpr int64_t room_of(int64_t bytes) {
  return (bytes + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
}

// For several processes, of which one that dies leaves it to the next.
void make_mutex(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

// What is under such a mutex is whole at each instruction, so what a process has left is gone on
// with.
class Lock {
 public:
  // `may_stop`: throws what ops::check_stop() does while it waits.
  Lock(pthread_mutex_t& mutex, bool may_stop) : mutex_(mutex) {
    int result = EBUSY;
    do {
      timespec until = {};
      clock_gettime(CLOCK_REALTIME, &until);
      until.tv_nsec += kLookNanoseconds;
      until.tv_sec += until.tv_nsec / 1'000'000'000;
      until.tv_nsec %= 1'000'000'000;
      result = pthread_mutex_timedlock(&mutex_, &until);
      if (result == ETIMEDOUT && may_stop) ops::check_stop();
    } while (result == ETIMEDOUT);
    if (result == EOWNERDEAD) pthread_mutex_consistent(&mutex_);
  }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  pthread_mutex_t& mutex_;
};

Error no_room(int64_t bytes) {
  return {ErrorCode::kOutOfMemory,
          "the host's memory: it has no " + std::to_string(bytes) +
              " bytes that processes share: " + std::strerror(errno),
          "free some, or leave weights on disk"};
}

}  // namespace

struct SharedSlabs::Entry {
  pthread_mutex_t mutex;  // of what follows; held while it is filled
  int64_t users;          // processes that have it, or died with it
  bool is_filled;
  // Never change.
  int64_t offset, bytes;
  char key[kKeyBytes];
};

// The begin of the file.
struct SharedSlabs::Table {
  uint64_t magic, size;
  pthread_mutex_t mutex;  // of what follows
  int64_t count, end;     // of entries, and of the file
  Entry entries[kMostEntries];
};

std::shared_ptr<SharedSlabs> SharedSlabs::make() {
  const int descriptor = memfd_create(kName, MFD_CLOEXEC);
  if (descriptor < 0) return nullptr;
  std::shared_ptr<SharedSlabs> slabs(new SharedSlabs(descriptor));
  if (ftruncate(descriptor, sizeof(Table)) != 0 || !slabs->map_table()) return nullptr;
  Table& table = *slabs->table_;
  make_mutex(table.mutex);
  table.size = sizeof(Table);
  table.end = room_of(sizeof(Table));
  table.magic = kMagic;
  return slabs;
}

std::shared_ptr<SharedSlabs> SharedSlabs::open(int64_t process, int descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  char target[64] = {};
  const ssize_t size = readlink(path.c_str(), target, sizeof(target));
  const std::string expected = std::string("/memfd:") + kName;
  if (size < 0 || !std::string_view(target, static_cast<size_t>(size)).starts_with(expected))
    return nullptr;
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return nullptr;
  std::shared_ptr<SharedSlabs> slabs(new SharedSlabs(opened));
  struct stat found = {};
  if (fstat(opened, &found) != 0 || found.st_size < int64_t{sizeof(Table)} || !slabs->map_table())
    return nullptr;
  const bool is_known = slabs->table_->magic == kMagic && slabs->table_->size == sizeof(Table);
  return is_known ? slabs : nullptr;
}

SharedSlabs::~SharedSlabs() {
  if (table_ != nullptr) munmap(table_, sizeof(Table));
  close(descriptor_);
}

bool SharedSlabs::map_table() {
  void* const data =
      mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) return false;
  table_ = static_cast<Table*>(data);
  return true;
}

SharedSlabs::Entry* SharedSlabs::entry_for(const std::string& key, int64_t bytes) {
  if (key.size() >= kKeyBytes) return nullptr;
  const Lock lock(table_->mutex, /*may_stop=*/true);
  for (int64_t i = 0; i < table_->count; ++i) {
    Entry& entry = table_->entries[i];
    if (entry.bytes == bytes && key == entry.key) return &entry;
  }
  const int64_t end = table_->end + room_of(bytes);
  if (table_->count == kMostEntries || ftruncate(descriptor_, end) != 0) return nullptr;
  Entry& entry = table_->entries[table_->count];
  make_mutex(entry.mutex);
  entry.offset = table_->end;
  entry.bytes = bytes;
  std::memcpy(entry.key, key.c_str(), key.size() + 1);
  table_->end = end;
  ++table_->count;
  return &entry;
}

void* SharedSlabs::map(const Entry& entry) const {
  const auto bytes = static_cast<size_t>(entry.bytes);
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, entry.offset);
  if (data == MAP_FAILED) throw no_room(entry.bytes);
  madvise(data, bytes, MADV_HUGEPAGE);
  return data;
}

std::shared_ptr<void> SharedSlabs::take(const std::string& key, int64_t bytes,
                                        const std::function<void(void*)>& fill) {
  Entry* const entry = bytes > 0 ? entry_for(key, bytes) : nullptr;
  if (entry == nullptr) return nullptr;
  const Lock lock(entry->mutex, /*may_stop=*/true);
  void* const data = map(*entry);
  if (!entry->is_filled) {
    try {
      // Pages that the system does not have would end the process where they are first written.
      while (fallocate(descriptor_, 0, entry->offset, entry->bytes) != 0) {
        if (errno != EINTR) throw no_room(bytes);
        ops::check_stop();
      }
      fill(data);
    } catch (...) {
      munmap(data, static_cast<size_t>(bytes));
      free(*entry);
      throw;
    }
    entry->is_filled = true;
  }
  ++entry->users;
  return {data, [slabs = shared_from_this(), entry](void* mapped) {
            munmap(mapped, static_cast<size_t>(entry->bytes));
            slabs->let_go(*entry);
          }};
}

void SharedSlabs::let_go(Entry& entry) noexcept {
  const Lock lock(entry.mutex, /*may_stop=*/false);
  if (--entry.users > 0) return;
  entry.is_filled = false;
  free(entry);
}

// With what is left of its last page.
void SharedSlabs::free(const Entry& entry) const noexcept {
  while (fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, entry.offset,
                   room_of(entry.bytes)) != 0 &&
         errno == EINTR) {
  }
}

int64_t SharedSlabs::bytes() const {
  struct stat found = {};
  constexpr int64_t kStatBlock = 512;
  return fstat(descriptor_, &found) == 0 ? found.st_blocks * kStatBlock : 0;
}

}  // namespace atelier::memory
