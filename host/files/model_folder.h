// From paths to files: what a file, a folder or a list of shards holds of a model.
#pragma once

#include <string>
#include <vector>

#include "host/files/checkpoint.h"

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

// What was named together, without globs: one path, or the shards of one checkpoint.
struct NamedPaths {
  std::vector<std::string> paths;
  bool are_shards = false;
  std::string name = {};  // of shards in messages; empty: that of the first file
};

// Adds what stands there to `found`. Throws Error.
void add_files(const NamedPaths& named, FoundFiles& found);

// The config.json beside a file; empty: there is none.
std::string config_beside(const std::string& file);

// The folders in one that hold a tokenizer, and those in these: google/umt5-xxl.
std::vector<std::string> tokenizers_below(const std::string& folder);

// True when the folder holds a tokenizer.json, a SentencePiece model or a vocab.json.
bool holds_tokenizer(const std::string& folder);

}  // namespace atelier::files
