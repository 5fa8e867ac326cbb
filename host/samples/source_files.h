// Contents of files, told apart by their hashes, which are remembered while the files stay as they
// are.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace atelier::samples {

struct SourceFile {
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  std::string hash;  // of its content
  bool operator==(const SourceFile&) const = default;
};
using SourceFiles = std::map<std::string, SourceFile, std::less<>>;  // by absolute path

// Size and time of a file or a folder of frames, without its hash; nullopt when it is not there.
std::optional<SourceFile> stat_file(const std::string& path);

// The path as keys of SourceFiles have it: absolute.
std::string absolute_path(const std::string& path);

// Hashes what stands at `paths`, which may repeat, on all cores. Files whose size and time are
// those in `known` are not read. Throws Error{kNotFound} or {kEnvironment} naming a file.
SourceFiles hash_files(const std::vector<std::string>& paths, const SourceFiles& known);

// Files of `recorded` that are still there with another content, in order.
std::vector<std::string> changed_files(const SourceFiles& recorded);

}  // namespace atelier::samples
