// Tells contents apart: XXH3 with 128 bits. Against accidents, not against malice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace atelier::files {

// Takes bytes piece by piece. Not thread-safe.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  ContentHash& add(const void* data, size_t size);
  // A text and its length: "a", "bc" differs from "ab", "c".
  ContentHash& add(std::string_view text);
  ContentHash& add(int64_t number);

  // 32 hexadecimal digits of what was added so far.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Hashes a file, or all files in a folder. Throws Error{kNotFound} or {kEnvironment} naming it.
std::string hash_file(const std::string& path);

// Hashes the length of a file and 4 KiB at each of its ends, or those of all files in a folder. A
// compressed picture or clip that is changed differs there: its checksums and tables are at its
// ends. Throws as hash_file() does.
std::string hash_ends(const std::string& path);

}  // namespace atelier::files
