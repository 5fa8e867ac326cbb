// File operations that fail, or stop the program, at a chosen call; and what a crash leaves.
#pragma once

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "host/files/file_operations.h"

namespace atelier::test {

// What stops a save in its tracks, as a kill would; no Error, so that nobody handles it.
struct Crash {};

enum class Fault {
  kOnce,         // one call fails with `why`
  kFromThenOn,   // it and all later ones
  kInterrupted,  // writes are cut to half and interrupted now and then; nothing fails
  kCrash,        // throws Crash, and no later call has an effect
};

// What the disk holds after the power was lost. Without flush, the entries of a folder and the
// bytes of a file are two things.
enum class Loss {
  kNothing,         // the program was killed, the system lives
  kAllUnflushed,    // entries and bytes
  kUnflushedBytes,  // entries are there, files are empty
  kUnflushedEntries,
  kSome,  // the later ones of the entries; files end somewhere, or in zeros
};

class FaultyFiles final : public files::FileOperations {
 public:
  // at: the number of the call, from 0; -1: none. `graveyard` keeps what is unlinked.
  FaultyFiles(std::string graveyard, Fault fault, int at, int why = EIO)
      : graveyard_(std::move(graveyard)), fault_(fault), at_(at), why_(why) {
    std::filesystem::create_directories(graveyard_);
  }

  // Calls so far, and whether the chosen one was among them.
  int count() const { return count_; }
  bool has_struck() const { return at_ >= 0 && count_ > at_; }
  uint64_t free_bytes = 0;  // 0: what the system says

  int open(const char* path, int flags, mode_t mode) override {
    if (!permits()) return -1;
    const bool is_new = (flags & O_CREAT) != 0 && access(path, F_OK) != 0;
    const int file = FileOperations::open(path, flags, mode);
    if (file < 0) return file;
    open_.insert(file);
    if (is_new) entries_.push_back({Entry::kMade, path, {}, {}});
    if ((flags & O_DIRECTORY) != 0) folders_[file] = path;
    return file;
  }
  ssize_t write(int file, const void* bytes, size_t count) override {
    if (fault_ == Fault::kInterrupted) {
      if (++count_ % 3 == 0) return refuse(EINTR);
      return FileOperations::write(file, bytes, (count + 1) / 2);
    }
    if (!permits()) return -1;
    unflushed_.insert(inode(file));
    return FileOperations::write(file, bytes, count);
  }
  int truncate(int file, off_t size) override {
    return permits() ? FileOperations::truncate(file, size) : -1;
  }
  int fsync(int file) override {
    if (!permits()) return -1;
    const auto folder = folders_.find(file);
    if (folder == folders_.end()) {
      unflushed_.erase(inode(file));
    } else {
      keep_entries(folder->second);
    }
    return 0;  // the bytes are where the test looks for them
  }
  int close(int file) override {
    folders_.erase(file);
    open_.erase(file);
    const int result = FileOperations::close(file);       // never left open
    if (fault_ == Fault::kCrash && count_ == at_) ++at_;  // at the next call: destructors close too
    return permits() ? result : -1;
  }
  int rename(const char* from, const char* to) override {
    if (!permits()) return -1;
    const std::string grave = bury(to);
    const int result = FileOperations::rename(from, to);
    if (result == 0) entries_.push_back({Entry::kRenamed, from, to, grave});
    return result;
  }
  int unlink(const char* path) override {
    if (!permits()) return -1;
    const std::string grave = bury(path);
    const int result = FileOperations::unlink(path);
    if (result == 0) entries_.push_back({Entry::kRemoved, path, {}, grave});
    return result;
  }
  int mkdir(const char* path, mode_t mode) override {
    if (!permits()) return -1;
    const int result = FileOperations::mkdir(path, mode);
    if (result == 0) entries_.push_back({Entry::kMadeFolder, path, {}, {}});
    return result;
  }
  int rmdir(const char* path) override {
    if (!permits()) return -1;
    const int result = FileOperations::rmdir(path);
    if (result == 0) entries_.push_back({Entry::kRemovedFolder, path, {}, {}});
    return result;
  }
  int statvfs(const char* path, struct statvfs* space) override {
    if (!permits()) return -1;
    const int result = FileOperations::statvfs(path, space);
    if (free_bytes != 0) space->f_bavail = free_bytes / space->f_frsize;
    return result;
  }
  int flock(int file) override { return permits() ? FileOperations::flock(file) : -1; }

  // As the system does for a program that was killed.
  void close_all() {
    for (const int file : open_) FileOperations::close(file);
    open_.clear();
  }

  // Makes of `root` what it is when the power comes back.
  void lose(Loss loss, const std::string& root, unsigned seed) {
    std::mt19937 random(seed);
    const auto pick = [&](size_t end) {
      return std::uniform_int_distribution<size_t>(0, end)(random);
    };
    if (loss == Loss::kAllUnflushed || loss == Loss::kUnflushedBytes || loss == Loss::kSome) {
      for (const std::string& file : unflushed_files(root)) {
        const size_t size = std::filesystem::file_size(file);
        const size_t kept = loss == Loss::kSome ? pick(size) : 0;
        std::filesystem::resize_file(file, kept);
        if (loss == Loss::kSome && pick(1) == 1) std::filesystem::resize_file(file, size);
      }
    }
    size_t kept = entries_.size();
    if (loss == Loss::kAllUnflushed || loss == Loss::kUnflushedEntries) kept = 0;
    if (loss == Loss::kSome) kept = pick(entries_.size());
    for (; entries_.size() > kept; entries_.pop_back()) undo(entries_.back());
  }

 private:
  struct Entry {
    enum Kind { kMade, kMadeFolder, kRenamed, kRemoved, kRemovedFolder } kind;
    std::string path, to, grave;
  };

  bool permits() {
    const int now = count_++;
    if (at_ < 0 || now < at_) return true;
    if (fault_ == Fault::kOnce && now > at_) return true;
    if (fault_ == Fault::kCrash) {
      if (now == at_) throw Crash{};
      errno = ENOENT;  // the program is dead: what it still does is not seen
      return false;
    }
    errno = why_;
    return false;
  }
  static int refuse(int why) {
    errno = why;
    return -1;
  }

  static ino_t inode(int file) {
    struct stat status = {};
    fstat(file, &status);
    return status.st_ino;
  }

  std::string bury(const std::string& path) {
    struct stat status = {};
    if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
    const std::string grave = graveyard_ + "/" + std::to_string(num_graves_++);
    std::filesystem::create_hard_link(path, grave);
    return grave;
  }

  // The entries of this folder are on the disk now. Earlier ones below a folder that got another
  // name follow it.
  void keep_entries(const std::string& folder) {
    std::vector<Entry> rest;
    for (const Entry& entry : entries_) {
      if (files::parent_folder(entry.path) != folder) {
        rest.push_back(entry);
        continue;
      }
      if (entry.kind != Entry::kRenamed) continue;
      for (Entry& earlier : rest)
        for (std::string* path : {&earlier.path, &earlier.to})
          if (path->starts_with(entry.path + "/")) path->replace(0, entry.path.size(), entry.to);
    }
    entries_ = std::move(rest);
  }

  std::vector<std::string> unflushed_files(const std::string& root) const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      struct stat status = {};
      if (lstat(entry.path().c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
          unflushed_.contains(status.st_ino))
        files.push_back(entry.path().string());
    }
    return files;
  }

  static void undo(const Entry& entry) {
    std::error_code ignored;
    switch (entry.kind) {
      case Entry::kMade:
        ::unlink(entry.path.c_str());
        break;
      case Entry::kMadeFolder:
        std::filesystem::remove_all(entry.path, ignored);
        break;
      case Entry::kRenamed:
        ::rename(entry.to.c_str(), entry.path.c_str());
        if (!entry.grave.empty()) ::rename(entry.grave.c_str(), entry.to.c_str());
        break;
      case Entry::kRemoved:
        if (!entry.grave.empty()) ::rename(entry.grave.c_str(), entry.path.c_str());
        break;
      case Entry::kRemovedFolder:
        ::mkdir(entry.path.c_str(), 0777);
        break;
    }
  }

  std::string graveyard_;
  Fault fault_;
  int at_, why_;
  int count_ = 0, num_graves_ = 0;
  std::vector<Entry> entries_;  // not flushed yet
  std::set<ino_t> unflushed_;   // files
  std::set<int> open_;
  std::map<int, std::string> folders_;  // those of them that are folders
};

}  // namespace atelier::test
