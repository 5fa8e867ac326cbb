// The index of a checkpoint in several files, model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

struct ShardIndex {
  std::map<std::string, std::string> weight_map;  // tensor to shard
  std::vector<std::string> shards;                // each once, sorted
  std::optional<uint64_t> total_size;             // bytes of all tensors, as claimed
};

// Reads the index. Shards are plain names, [A-Za-z0-9_.-]+.safetensors, so that none leaves the
// folder. Throws ParseError: INDEX_SYNTAX, INDEX_UTF8, INDEX_DEPTH, INDEX_FORM, INDEX_DUPLICATE,
// INDEX_SHARD_NAME.
ShardIndex parse_shard_index(std::string_view text);

}  // namespace atelier::formats
