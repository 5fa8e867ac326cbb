// What stages of a family made, on the disk, one file for each.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/conditioning.h"

namespace atelier::samples {

// Tensors of an entry of the target's stage; the mask is there where the row has one.
inline constexpr const char* kLatents = "latents";
inline constexpr const char* kMask = "mask";

// Shapes of an entry's tensors by name.
using EntryShapes = std::map<std::string, std::vector<int64_t>, std::less<>>;

// A folder of entries by stage, named by the hash of what they were made from. Safe to use from
// several threads.
class EncodingStore {
 public:
  explicit EncodingStore(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  std::string path(std::string_view stage, std::string_view key) const;

  // The shapes of an entry whose header is whole; nullopt when there is none or it is damaged.
  // Reads the header only.
  std::optional<EntryShapes> find(std::string_view stage, std::string_view key) const;

  // On the CPU. Throws Error{kDataLoss} naming the file and what to do, also when values are not
  // those that were written.
  NamedTensors read(std::string_view stage, std::string_view key) const;

  // Writes an entry, which is then there whole or not at all. Throws Error{kEnvironment}.
  void write(std::string_view stage, std::string_view key, const NamedTensors& tensors) const;

 private:
  std::string folder_;
};

}  // namespace atelier::samples
