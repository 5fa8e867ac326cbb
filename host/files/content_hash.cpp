#include "host/files/content_hash.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <vector>
#include <xxhash.h>

#include "host/files/file_reader.h"
#include "host/files/folder.h"

namespace atelier::files {

struct ContentHash::State {
  XXH3_state_t state;
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->state);
}
ContentHash::~ContentHash() = default;

ContentHash& ContentHash::add(const void* data, size_t size) {
  XXH3_128bits_update(&state_->state, data, size);
  return *this;
}

ContentHash& ContentHash::add(std::string_view text) {
  add(static_cast<int64_t>(text.size()));
  return add(text.data(), text.size());
}

ContentHash& ContentHash::add(int64_t number) {
  return add(&number, sizeof(number));
}

std::string ContentHash::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->state);
  std::array<char, 33> text;
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return text.data();
}

namespace {

template <typename HashFile>
std::string hash_folder(const std::string& path, const HashFile& hash_one) {
  ContentHash hash;
  for (const std::string& name : names_in(path)) {
    const std::string file = (std::filesystem::path(path) / name).string();
    if (is_file(file)) hash.add(name).add(hash_one(file));
  }
  return hash.hex();
}

}  // namespace

std::string hash_file(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return hash_folder(path, hash_file);
  const FileReader file(path);
  ContentHash hash;
  std::vector<char> buffer(1 << 20);
  for (uint64_t at = 0; at < file.size();) {
    const uint64_t bytes = std::min<uint64_t>(buffer.size(), file.size() - at);
    file.read(buffer.data(), at, bytes);
    hash.add(buffer.data(), bytes);
    at += bytes;
  }
  return hash.hex();
}

std::string hash_ends(const std::string& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) return hash_folder(path, hash_ends);
  constexpr uint64_t kEndBytes = 4096;
  const FileReader file(path);
  const uint64_t bytes = std::min(file.size(), kEndBytes);
  std::vector<char> ends(2 * bytes);
  file.read(ends.data(), 0, bytes);
  file.read(ends.data() + bytes, file.size() - bytes, bytes);
  return ContentHash().add(static_cast<int64_t>(file.size())).add(ends.data(), ends.size()).hex();
}

}  // namespace atelier::files
