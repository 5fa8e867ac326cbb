// From what the user names to files: folders, globs, shard lists and published model ids.
#pragma once

#include <string>
#include <vector>

#include "host/files/checkpoint.h"
#include "host/report/problems.h"

namespace atelier::files {

struct FoundCheckpoint {
  CheckpointFiles files;
  // It stands in a model folder that was named as a whole; the family may not know it.
  bool in_model_folder = false;
  // The entry that named it, as the user wrote it: a path, or "org/name:glob". Of a list of shards
  // each of its paths.
  std::vector<std::string> entry = {};
};

struct FoundFiles {
  std::vector<FoundCheckpoint> checkpoints;
  std::vector<std::string> tokenizers;  // folders that hold a tokenizer, or its file
  std::vector<std::string> entries;     // all that were given, as in FoundCheckpoint::entry
};

// Finds the files of --model_paths and --model_id_with_origin_paths; either may be empty. What is
// wrong is added to `problems`, all of it; what is published and not here is one problem with the
// places searched and the command that downloads it.
FoundFiles find_model_files(const std::string& model_paths,
                            const std::string& model_id_with_origin_paths,
                            report::Problems& problems);

// The config.json beside a file; empty: there is none.
std::string config_beside(const std::string& file);

// Adds what one path, folder or glob stands for to `found`. Throws Error.
void find_at_path(const std::string& path, FoundFiles& found);

// Where published models are looked for: ATELIER_MODEL_BASE_PATH (or DIFFSYNTH_MODEL_BASE_PATH, or
// ./models), then the caches of Hugging Face and ModelScope. Each is a folder that holds the files
// of `model_id`.
std::vector<std::string> published_folders(const std::string& model_id);

// Paths below `folder` that match, sorted. `*` and `?` do not cross a slash; hidden files match
// only a literal dot.
std::vector<std::string> expand_glob(const std::string& folder, const std::string& pattern);

// The folders in one that hold a tokenizer, and those in these: google/umt5-xxl.
std::vector<std::string> tokenizers_below(const std::string& folder);

// True when the folder holds a tokenizer.json, a SentencePiece model or a vocab.json.
bool holds_tokenizer(const std::string& folder);

}  // namespace atelier::files
