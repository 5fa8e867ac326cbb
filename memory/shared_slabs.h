// Host memory that the processes of one machine have together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace atelier::memory {

// What is put there is there once, whichever process has put it there, and the others find it. One
// of them makes it; those of the same user open it, who know that one's number and descriptor, so
// they need no parent in common. A process that dies holds up nobody; with the last one the system
// frees all. Safe to use from several threads.
class SharedSlabs : public std::enable_shared_from_this<SharedSlabs> {
 public:
  // Null where the system has no such memory.
  static std::shared_ptr<SharedSlabs> make();
  // Slabs of another process, whose descriptor() is given; null where it cannot be opened.
  static std::shared_ptr<SharedSlabs> open(int64_t process, int descriptor);
  ~SharedSlabs();
  SharedSlabs(const SharedSlabs&) = delete;
  SharedSlabs& operator=(const SharedSlabs&) = delete;

  int descriptor() const { return descriptor_; }

  // This process is number `rank` of the `size` that use it.
  void deal(int64_t rank, int64_t size) { rank_ = rank, size_ = size; }
  int64_t size() const { return size_; }
  // With which of `count` things that all of them take this process begins, so that each fills
  // others.
  int64_t first_of(int64_t count) const { return rank_ * count / size_; }

  // `bytes` of memory that all processes have under this `key`, at the begin of a page. Who comes
  // first calls `fill` with it, while others wait; what `fill` throws is thrown on, and another
  // process fills it then. It is only read afterwards. It goes when no process has it any more.
  // Null where there is no place for another key. Throws Error{kOutOfMemory}, and what
  // ops::check_stop() throws.
  std::shared_ptr<void> take(const std::string& key, int64_t bytes,
                             const std::function<void(void*)>& fill);

  // What is there now, of all processes.
  int64_t bytes() const;

 private:
  struct Entry;
  struct Table;
  explicit SharedSlabs(int descriptor) : descriptor_(descriptor) {}
  bool map_table();
  Entry* entry_for(const std::string& key, int64_t bytes);
  void* map(const Entry& entry) const;
  void let_go(Entry& entry) noexcept;
  void free(const Entry& entry) const noexcept;

  const int descriptor_;
  Table* table_ = nullptr;
  int64_t rank_ = 0, size_ = 1;
};

}  // namespace atelier::memory
