// Reading saved states; no lock is needed for it.
#include <algorithm>
#include <filesystem>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/checkpoint.h"
#include "host/files/content_hash.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/run/durable.h"
#include "host/run/manifest.h"
#include "host/run/run_folder.h"

namespace atelier::run {

namespace fs = std::filesystem;

using files::display_path;

namespace {

// Newest first; behind each step the one that gave way to it.
std::vector<std::string> candidates(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : folder_names(folder)) {
    if (const auto step = step_of(name)) found.emplace_back(*step, name);
    if (const auto step = step_of(name, kOldPrefix)) found.emplace_back(*step, name);
  }
  std::sort(found.rbegin(), found.rend());  // "step-" comes after ".old-step-"
  std::vector<std::string> folders;
  folders.reserve(found.size());
  for (const auto& [step, name] : found) folders.push_back(path_in(folder, name));
  return folders;
}

// A state of another run would bring that run's settings, and the folder would mix the two.
void check_run(const SavedState& saved_state) {
  const std::string run = run_of(saved_state);
  if (run.empty() || saved_state.run.empty()) return;
  const std::string identity = identity_of(run);
  if (identity.empty() || identity == saved_state.run) return;
  throw Error(ErrorCode::kInvalidArgument,
              display_path(saved_state.folder) + ": is of another run than " + display_path(run),
              "move it out of \"checkpoints\", where --resume takes it by its path, with another "
              "--output_path; where the whole run was put here, delete " +
                  display_path(path_in(run, kIdentityName)),
              "CHECKPOINT_OF_ANOTHER_RUN");
}

SavedState open_and_read(const std::string& folder,
                         const std::function<void(const SavedState&)>& read) {
  SavedState saved_state = open_state(folder);
  check_run(saved_state);
  if (read) read(saved_state);
  return saved_state;
}

bool is_identity(const std::string& text) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  return text.size() == kIdentityDigits && std::ranges::all_of(text, is_digit);
}

SavedState newest_whole(const std::string& folder, const std::vector<std::string>& folders,
                        const std::function<void(const std::string&)>& warn,
                        const std::function<void(const SavedState&)>& read) {
  for (const std::string& candidate : folders) {
    try {
      return open_and_read(candidate, read);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss && error.code() != ErrorCode::kEnvironment) throw;
      if (warn) warn("checkpoint passed over: " + error.message());
    }
  }
  throw Error(ErrorCode::kDataLoss,
              display_path(folder) + ": none of its " + std::to_string(folders.size()) +
                  " checkpoints is whole, from " + display_path(folders.front()) + " to " +
                  display_path(folders.back()),
              "give another folder, or begin anew", "CHECKPOINT_DAMAGED");
}

}  // namespace

std::string run_of(const SavedState& saved_state) {
  const fs::path said = saved_state.folder;
  for (const fs::path& folder : {said.lexically_normal(), fs::absolute(said).lexically_normal()}) {
    const fs::path parent =
        folder.has_filename() ? folder.parent_path() : folder.parent_path().parent_path();
    if (parent.filename() == kCheckpointsName && parent.has_parent_path())
      return parent.parent_path().string();
  }
  return "";
}

std::string written_identity(const std::string& run_folder) {
  const std::string file = path_in(run_folder, kIdentityName);
  if (!files::is_file(file)) return "";
  std::string said = files::read_text_file(file);
  said.erase(std::min(said.find('\n'), said.size()));
  return is_identity(said) ? said : "";
}

std::string identity_of(const std::string& run_folder) {
  if (std::string written = written_identity(run_folder); !written.empty()) return written;
  for (const std::string& folder : candidates(path_in(run_folder, kCheckpointsName))) {
    try {
      const SavedState saved_state = open_state(folder);
      if (!saved_state.run.empty()) return saved_state.run;
    } catch (const Error&) {  // damaged, which says nothing of the others
    }
  }
  return "";
}

std::string SavedState::path_of(const std::string& file, bool check) const {
  const auto found = files.find(file);
  if (found == files.end())
    throw Error(ErrorCode::kNotFound, display_path(folder) + ": there is no " +
                                          formats::quote_and_escape(file) + " in this checkpoint");
  std::string path = checked_path(*this, file);
  if (check && files::hash_file(path) != found->second.hash)
    throw damaged(path, "its contents are not those that were written");
  return path;
}

NamedTensors SavedState::load(const std::string& file, bool check) const {
  const std::string path = path_of(file, check);
  const files::Checkpoint opened = files::Checkpoint::open(path, {path});
  NamedTensors tensors;
  for (const auto& [name, meta] : opened.index().tensors()) tensors[name] = opened.read(name);
  return tensors;
}

std::string SavedState::text(const std::string& file) const {
  return files::read_text_file(path_of(file, /*check=*/true));
}

SavedState find_state(const std::string& path, const std::function<void(const std::string&)>& warn,
                      const std::function<void(const SavedState&)>& read) {
  const fs::path clean = (fs::path(path) / "").parent_path();  // without a slash at the end
  std::error_code ignored;
  const std::optional<int64_t> step = step_of(clean.filename().string());
  if (step || fs::exists(clean / kManifestName, ignored)) {
    if (fs::exists(clean, ignored)) return open_and_read(clean.string(), read);
    const fs::path old = clean.parent_path() / step_name(*step, kOldPrefix);
    if (fs::exists(old, ignored)) return open_and_read(old.string(), read);
  } else {
    for (const fs::path& folder : {clean / "checkpoints", clean}) {
      const std::vector<std::string> folders = candidates(folder.string());
      if (!folders.empty()) return newest_whole(folder.string(), folders, warn, read);
    }
  }
  throw Error(ErrorCode::kNotFound,
              display_path(path) + (fs::exists(clean, ignored)
                                        ? ": there is no checkpoint, here or in \"checkpoints\""
                                        : ": there is no such folder"),
              "give the folder of a run, or one checkpoint", "CHECKPOINT_NOT_FOUND");
}

}  // namespace atelier::run
