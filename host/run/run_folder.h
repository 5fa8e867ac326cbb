// The folder of a run: one program at a time writes there, and its saved states are whole or not
// there. docs/checkpoints.md says how.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/conditioning.h"

#include "host/files/run_mark.h"

namespace atelier::run {

// What a run keeps in its folder, beside its weights.
inline constexpr std::string_view kCheckpointsName = "checkpoints";
inline constexpr std::string_view kConfigName = "config.toml";
inline constexpr std::string_view kCsvName = "loss.csv";
inline constexpr std::string_view kPreviewsName = "samples";
inline constexpr std::string_view kTensorboardName = "tensorboard_log";
inline constexpr std::string_view kIdentityName = files::kRunMark;  // see RunFolder::identity()

// A state that was saved: OUTPUT/checkpoints/step-00001200/ with MANIFEST.json, which lists every
// file with its size and content hash and ends with a checksum of its own.
struct SavedState {
  struct File {
    uint64_t bytes = 0;
    std::string hash;  // as files::hash_file
  };

  std::string folder;
  int64_t step = 0;
  std::string run;       // identity of the run that saved it; empty: an older program did
  nlohmann::json facts;  // what save() was given
  std::map<std::string, File> files;

  // Throw Error{kDataLoss} naming the file when its length, or with `check` its hash, is another
  // than the manifest's; Error{kNotFound} when the saved state has no such file.
  NamedTensors load(const std::string& file, bool check = true) const;
  std::string text(const std::string& file) const;
  std::string path_of(const std::string& file, bool check) const;
};
using StateFiles = std::map<std::string, SavedState::File>;  // by name

struct SavedStateFiles {
  std::map<std::string, NamedTensors> tensors;  // "optimizer.safetensors"
  std::map<std::string, std::string> texts;     // "config.toml"
};

// What a saved state of these takes on the disk at most, in bytes.
uint64_t bytes_needed(const SavedStateFiles& files, const nlohmann::json& facts);

// Writes and flushes them in a folder. Returns what the manifest says of them; as text and back,
// for processes that tell each other. Throw Error{kEnvironment}, and Error{kInvalidArgument} for a
// name that a file of a saved state cannot have.
StateFiles write_files(const std::string& folder, const SavedStateFiles& files);
std::string to_text(const StateFiles& files);
StateFiles files_of_text(const std::string& text);

// Removes what is no saved state, as far as that can be done; what is left goes with the next
// RunFolder.
void discard(const std::string& folder);

// Throws Error{kEnvironment} naming the folder while a run holds it.
void check_lock(const std::string& folder);

// Takes the folder's lock. Not thread-safe.
class RunFolder {
 public:
  // Makes the folder; removes what a killed run left unfinished there. Throws Error{kEnvironment}
  // naming the folder when another run holds it, or it cannot be written.
  explicit RunFolder(std::string path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }

  // 32 digits that tell this run from all others. They are written into the folder once, in a file
  // of their own, and into the manifest of each saved state, and stay when the folder is moved.
  const std::string& identity() const { return identity_; }

  // Throws Error{kEnvironment} with what could be deleted when fewer than `bytes` are free, and a
  // tenth more. `what` is about to be written, or must not be crowded out: "a checkpoint".
  void require_space(std::string_view what, uint64_t bytes) const;

  // Writes aside, flushes files and folders, renames: the saved state is there whole or not at all,
  // and one of the same step gives way to it. Free space is looked at first. Then the oldest whole
  // saved states beyond `keep` (0: all stay) go; `keep` 1 still leaves two. Returns the folder of
  // the new one. Throws Error{kEnvironment}; what was there is then as before.
  std::string save(int64_t step, const SavedStateFiles& files, const nlohmann::json& facts,
                   int64_t keep);

  // Begins where several processes write, between the two, into the folder that the first call
  // returns, a state of `bytes`. What was begun and is not committed is to be discarded.
  std::string begin_save(int64_t step, uint64_t bytes);
  std::string commit_save(const std::string& aside, int64_t step, const StateFiles& files,
                          const nlohmann::json& facts, int64_t keep);

  // Deletes weights that were saved on the way, "step-500.safetensors" or
  // "epoch-3.dit.safetensors": the sets written longest ago, beyond `keep`. Files of one step or
  // epoch are one set. What cannot be deleted is told on stderr the first time.
  void remove_old_weights(int64_t keep);

 private:
  void clean() const;
  void identify();
  std::string what_to_delete() const;
  void commit(const std::string& aside, int64_t step) const;
  void remove_beyond(int64_t keep, int64_t newest_step) const;

  std::string path_, checkpoints_, identity_;
  int lock_ = -1;            // -1: the file system has no locks
  bool has_warned_ = false;  // of weights that cannot be deleted
};

// The saved state that `path` means: the folder of a run (its newest whole saved state), its
// "checkpoints" folder, or one saved state. Manifest and lengths are checked; `read`, where given,
// loads what is needed, so that contents are checked as well. One that is damaged (Error{kDataLoss}
// or {kEnvironment}, also from `read`) is passed over, `warn` gets a line for it, and the next
// older one is taken. Throws Error{kNotFound} saying what was looked at when there is none,
// Error{kDataLoss} when none is whole, or the one that `path` names is not, and
// Error{kInvalidArgument} when the one to be taken is of another run than the folder that it is in.
SavedState find_state(const std::string& path, const std::function<void(const std::string&)>& warn,
                      const std::function<void(const SavedState&)>& read = {});

// The folder of the run that a saved state belongs to, relative where the state's folder is; empty
// when it lies alone.
std::string run_of(const SavedState& saved_state);

}  // namespace atelier::run
