#include "host/run/run_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <unistd.h>

#include <ATen/core/Tensor.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_operations.h"
#include "host/files/file_reader.h"
#include "host/files/safetensors_writer.h"
#include "host/files/temporary_file.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"
#include "host/report/text.h"
#include "host/run/durable.h"
#include "host/run/manifest.h"

namespace atelier::run {

namespace fs = std::filesystem;

using files::display_path;
using files::file_operations;

namespace {

std::string lock_path(const std::string& folder) {
  return path_in(folder, ".lock");
}

// "process 123 on node7", as the one that holds the lock wrote it.
std::string read_holder(const std::string& folder) {
  std::ifstream file(lock_path(folder));
  std::string holder;
  std::getline(file, holder);
  return holder.empty() ? "another process" : formats::quote_and_escape(holder);
}

void write_holder(int lock) {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  const std::string holder = "process " + std::to_string(getpid()) + " on " + host.data() + "\n";
  // Only for the message to others: the lock holds without it.
  if (file_operations().truncate(lock, 0) == 0)
    files::write_all(lock, holder.data(), holder.size());
}

[[noreturn]] void fail_locked(const std::string& folder) {
  throw Error(ErrorCode::kEnvironment,
              display_path(folder) + ": another run writes here: " + read_holder(folder),
              "wait for its end, or take another output folder", "RUN_LOCKED");
}

// Returns the descriptor of the lock; -1 where the file system has no locks.
int take_lock(const std::string& folder) {
  const std::string path = lock_path(folder);
  const int lock =
      file_operations().open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (lock < 0 && errno == ELOOP)
    throw Error(ErrorCode::kEnvironment,
                display_path(path) + ": is a symbolic link, which a lock may not be",
                "delete it, when nobody needs it");
  if (lock < 0) files::fail_on_file(path, "cannot be written", errno);
  if (file_operations().flock(lock) == 0) {
    write_holder(lock);
    return lock;
  }
  const int why = errno;
  file_operations().close(lock);
  if (why == EWOULDBLOCK) fail_locked(folder);
  if (why != ENOLCK && why != ENOTSUP && why != ENOSYS && why != EINVAL)
    files::fail_on_file(path, "cannot be locked", why);
  std::fprintf(stderr, "warning: %s: this file system has no locks; let one run only write here\n",
               display_path(folder).c_str());
  return -1;
}

// "older weights take 1.50 GiB (step-2.safetensors), see --weights_total_limit"; empty: there are
// none.
std::string deletable(const std::string& what, const std::vector<std::string>& paths,
                      const char* flag) {
  uint64_t bytes = 0;
  std::vector<std::string> names;
  for (const std::string& path : paths) {
    std::error_code ignored;
    for (const auto& entry : fs::recursive_directory_iterator(path, ignored))
      if (entry.is_regular_file(ignored)) bytes += entry.file_size(ignored);
    if (fs::is_regular_file(path, ignored)) bytes += fs::file_size(path, ignored);
    names.push_back(fs::path(path).filename().string());
  }
  if (names.empty()) return {};
  return what + " take " + report::bytes_text(bytes) + " (" + report::list_names(names, 3) +
         "), see " + flag;
}

void check_names(const SavedStateFiles& files) {
  const auto check = [](const std::string& name, bool is_taken) {
    if (!is_plain_name(name) || name == kManifestName || is_taken)
      throw Error(ErrorCode::kInvalidArgument,
                  formats::quote_and_escape(name) + " cannot be the name of a checkpoint's file",
                  is_taken ? "it is there twice" : "use letters, digits and \"._-\"");
  };
  for (const auto& [name, tensors] : files.tensors) check(name, /*is_taken=*/false);
  for (const auto& [name, text] : files.texts) check(name, files.tensors.contains(name));
}

void warn(const Error& error) {
  std::fputs(report::error_line(error, "warning").c_str(), stderr);
}

// Whether a saved state is whole, and of the run `identity` or of one that has none; empty: of any.
bool is_whole(const std::string& folder, const std::string& identity = {}) {
  try {
    const std::string run = open_state(folder).run;
    return identity.empty() || run.empty() || run == identity;
  } catch (const Error&) {
    return false;
  }
}

std::string new_identity() {
  std::random_device random;
  std::string digits;
  while (digits.size() < kIdentityDigits) {
    std::array<char, 9> part;
    std::snprintf(part.data(), part.size(), "%08x", random());
    digits += part.data();
  }
  return digits;
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

}  // namespace

uint64_t bytes_needed(const SavedStateFiles& files, const nlohmann::json& facts) {
  constexpr uint64_t kPerFile = 8192, kPerTensor = 256;
  uint64_t bytes =
      kPerFile + facts.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).size();
  for (const auto& [name, tensors] : files.tensors) {
    bytes += kPerFile;
    for (const auto& [key, tensor] : tensors) bytes += kPerTensor + key.size() + tensor.nbytes();
  }
  for (const auto& [name, text] : files.texts) bytes += kPerFile + text.size();
  return bytes;
}

StateFiles write_files(const std::string& folder, const SavedStateFiles& files) {
  check_names(files);
  StateFiles written;
  const auto note = [&](const std::string& name, const files::WrittenFile& file) {
    written[name] = {file.bytes, file.hash};
  };
  for (const auto& [name, tensors] : files.tensors)
    note(name, files::write_safetensors(path_in(folder, name), tensors));
  for (const auto& [name, text] : files.texts)
    note(name, files::write_file(path_in(folder, name), text));
  return written;
}

void discard(const std::string& folder) {
  try {
    remove_tree(folder);
  } catch (const Error& error) {
    warn(error);
  }
}

void check_lock(const std::string& folder) {
  const int lock =
      file_operations().open(lock_path(folder).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0) return;
  const bool is_held = file_operations().flock(lock) != 0 && errno == EWOULDBLOCK;
  file_operations().close(lock);
  if (is_held) fail_locked(folder);
}

RunFolder::RunFolder(std::string path)
    : path_(path.empty() ? "." : std::move(path)), checkpoints_(path_in(path_, kCheckpointsName)) {
  make_folders(path_);
  lock_ = take_lock(path_);
  try {
    if (lock_ >= 0) clean();
    identify();
  } catch (...) {
    if (lock_ >= 0) file_operations().close(lock_);
    throw;
  }
}

RunFolder::~RunFolder() {
  if (lock_ >= 0) file_operations().close(lock_);
}

void RunFolder::clean() const {
  for (const std::string& folder : {path_, path_in(path_, kPreviewsName)})
    files::remove_abandoned(folder);
  for (const std::string& name : folder_names(checkpoints_)) {
    const std::string folder = path_in(checkpoints_, name);
    if (files::is_temporary(name)) discard(folder);
    const std::optional<int64_t> step = step_of(name, kOldPrefix);
    if (!step) continue;
    // A crash between two renames left this one without, or beside, the one that takes its place.
    const std::string final = path_in(checkpoints_, step_name(*step));
    if (!exists(final)) {
      rename_folder(folder, final);
      files::flush_folder(checkpoints_, final);
    } else if (is_whole(final)) {
      discard(folder);
    }
  }
}

// A folder that older programs wrote gets its identity here; states without one are of any run.
void RunFolder::identify() {
  identity_ = written_identity(path_);
  if (!identity_.empty()) return;
  identity_ = identity_of(path_);
  if (identity_.empty()) identity_ = new_identity();
  files::TemporaryFile file(path_in(path_, kIdentityName));  // and not through a symbolic link
  const std::string line = identity_ + "\n";
  file.write(line.data(), line.size());
  file.place();
}

void RunFolder::require_space(std::string_view what, uint64_t bytes) const {
  struct statvfs space = {};
  if (file_operations().statvfs(path_.c_str(), &space) != 0)
    files::fail_on_file(path_, "its free space cannot be found", errno);
  if (space.f_blocks == 0) return;  // a file system that does not count
  const uint64_t needed = bytes + bytes / 10;
  const uint64_t free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  if (free >= needed) return;
  throw Error(ErrorCode::kEnvironment,
              display_path(path_) + ": " + std::string(what) + " needs " +
                  report::bytes_text(needed) + " of the disk, and " + report::bytes_text(free) +
                  " are free",
              what_to_delete(), "DISK_FULL");
}

// Names what may be deleted of what the run itself wrote. The newest of its weights and saved
// states are not among it.
std::string RunFolder::what_to_delete() const {
  std::vector<std::pair<fs::file_time_type, std::string>> weights;
  for (const std::string& name : folder_names(path_)) {
    std::error_code ignored;
    const std::string path = path_in(path_, name);
    if (name.ends_with(".safetensors"))
      weights.emplace_back(fs::last_write_time(path, ignored), path);
  }
  std::sort(weights.begin(), weights.end());
  if (!weights.empty()) weights.pop_back();
  std::vector<std::string> files, states;
  for (const auto& [time, path] : weights) files.push_back(path);
  for (const std::string& name : folder_names(checkpoints_))
    if (step_of(name)) states.push_back(path_in(checkpoints_, name));
  if (!states.empty()) states.pop_back();
  std::string hint = "free some space";
  for (const std::string& what :
       {deletable("older weights", files, "--weights_total_limit"),
        deletable("older checkpoints", states, "--checkpoints_total_limit")})
    if (!what.empty()) hint += "; " + what;
  return hint;
}

std::string RunFolder::save(int64_t step, const SavedStateFiles& files, const nlohmann::json& facts,
                            int64_t keep) {
  const std::string aside = begin_save(step, bytes_needed(files, facts));
  try {
    return commit_save(aside, step, write_files(aside, files), facts, keep);
  } catch (...) {
    discard(aside);
    throw;
  }
}

std::string RunFolder::begin_save(int64_t step, uint64_t bytes) {
  make_folders(checkpoints_);
  require_space("a checkpoint", bytes);
  std::string aside = files::temporary_path(path_in(checkpoints_, step_name(step)));
  if (file_operations().mkdir(aside.c_str(), 0777) != 0)
    files::fail_on_file(aside, "the folder cannot be made", errno);
  return aside;
}

std::string RunFolder::commit_save(const std::string& aside, int64_t step, const StateFiles& files,
                                   const nlohmann::json& facts, int64_t keep) {
  // The last file: where it is, the others are.
  files::write_file(path_in(aside, kManifestName), manifest_text(step, files, facts, identity_));
  commit(aside, step);
  try {
    if (keep > 0) remove_beyond(std::max<int64_t>(keep, 2), step);
  } catch (const Error& error) {
    warn(error);  // the new one is there, and that counts
  }
  return path_in(checkpoints_, step_name(step));
}

// One of the same step is set aside, and stays findable until the new one is flushed.
void RunFolder::commit(const std::string& aside, int64_t step) const {
  const std::string final = path_in(checkpoints_, step_name(step));
  std::string old = path_in(checkpoints_, step_name(step, kOldPrefix));
  if (exists(final) && exists(old) && is_whole(final)) remove_tree(old);
  // Where there is an old one still, the final one is damaged, and the old one stands for it.
  if (exists(old)) old = files::temporary_path(final);
  const bool replaces = exists(final);
  if (replaces) rename_folder(final, old);
  try {
    rename_folder(aside, final);
    files::flush_folder(checkpoints_, final);
  } catch (const Error&) {
    file_operations().rename(final.c_str(), aside.c_str());
    if (replaces) file_operations().rename(old.c_str(), final.c_str());
    throw;
  }
  for (const std::string& folder : {old, path_in(checkpoints_, step_name(step, kOldPrefix))})
    if (exists(folder)) discard(folder);
}

void RunFolder::remove_beyond(int64_t keep, int64_t newest_step) const {
  std::vector<int64_t> steps;  // but the one just saved, which stays whatever the others are
  for (const std::string& name : folder_names(checkpoints_))
    if (const auto step = step_of(name); step && *step != newest_step) steps.push_back(*step);
  std::sort(steps.rbegin(), steps.rend());
  int64_t num_whole = 1;
  for (const int64_t step : steps) {
    const std::string folder = path_in(checkpoints_, step_name(step));
    if (!is_whole(folder, identity_) || ++num_whole <= keep) continue;
    const std::string deleted = files::temporary_path(folder);
    rename_folder(folder, deleted);
    files::flush_folder(checkpoints_, folder);
    discard(deleted);
  }
}

void RunFolder::remove_old_weights(int64_t keep) {
  static const std::regex kName(R"(((?:step|epoch)-\d+)(?:\.\w+)?\.safetensors)");
  std::map<std::string, std::pair<fs::file_time_type, std::vector<std::string>>> sets;  // by name
  for (const std::string& name : folder_names(path_)) {
    std::smatch match;
    if (!std::regex_match(name, match, kName)) continue;
    std::error_code ignored;
    const std::string path = path_in(path_, name);
    auto& [written, paths] =
        sets.try_emplace(match[1], fs::file_time_type::min(), std::vector<std::string>())
            .first->second;
    written = std::max(written, fs::last_write_time(path, ignored));
    paths.push_back(path);
  }
  std::vector<std::pair<fs::file_time_type, std::vector<std::string>>> oldest_first;
  for (auto& [name, set] : sets) oldest_first.push_back(std::move(set));
  std::sort(oldest_first.begin(), oldest_first.end());
  for (int64_t i = 0; i + keep < std::ssize(oldest_first); ++i) {
    for (const std::string& path : oldest_first[i].second) {
      if (file_operations().unlink(path.c_str()) == 0 || errno == ENOENT) continue;
      if (std::exchange(has_warned_, true)) continue;
      warn(Error(ErrorCode::kEnvironment,
                 display_path(path) + ": cannot be deleted: " + std::strerror(errno),
                 "delete older weights yourself; this is told once"));
    }
  }
}

}  // namespace atelier::run
