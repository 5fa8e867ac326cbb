// MANIFEST.json of a saved state, and the names of such states in their folder.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "atelier/error.h"

#include "host/run/run_folder.h"

namespace atelier::run {

inline constexpr std::string_view kManifestName = "MANIFEST.json";

// Names in "checkpoints". The second is that of one that gives way to a new state of the same
// step, for the moment in which both are there. What is being written or removed has a name of
// files::temporary_path.
inline constexpr std::string_view kStepPrefix = "step-";
inline constexpr std::string_view kOldPrefix = ".old-step-";

// Length of RunFolder::identity().
inline constexpr size_t kIdentityDigits = 32;

// "step-00001200".
std::string step_name(int64_t step, std::string_view prefix = kStepPrefix);
// The step of "step-00001200"; nullopt: the name is another one.
std::optional<int64_t> step_of(std::string_view name, std::string_view prefix = kStepPrefix);

// Letters, digits, "._-", not beginning with a dot.
bool is_plain_name(std::string_view name);

// The text of a manifest; `run`: see SavedState. Throws Error{kInvalidArgument} when `facts` hold
// text that is not UTF-8.
std::string manifest_text(int64_t step, const StateFiles& files, const nlohmann::json& facts,
                          const std::string& run = {});

// Reads the manifest of `folder` and compares the lengths of its files.
// Throws Error{kDataLoss} naming what is missing or damaged, and Error{kUnsupported} for a manifest
// of another version.
SavedState open_state(const std::string& folder);

// Which run the folder of a run belongs to, by its own file; empty: there is none.
std::string written_identity(const std::string& run_folder);
// Which run a folder belongs to that may have been copied without its hidden files: then its newest
// whole saved state tells. Empty: an older program wrote all that is there.
std::string identity_of(const std::string& run_folder);

// The path of a file that the manifest lists. Throws Error{kDataLoss} when its length is another.
std::string checked_path(const SavedState& saved_state, const std::string& file);

// Error{kDataLoss}: "PATH: what".
Error damaged(const std::string& path, const std::string& what);

}  // namespace atelier::run
