#include "host/model/fingerprint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "host/files/content_hash.h"
#include "host/files/file_reader.h"

namespace atelier::model {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kNumBlocks = 64;

void add_range(files::ContentHash& hash, const files::FileReader& file, uint64_t begin,
               uint64_t bytes) {
  std::vector<char> buffer(std::min<uint64_t>(bytes, 1 << 20));
  while (bytes > 0) {
    const uint64_t count = std::min<uint64_t>(bytes, buffer.size());
    file.read(buffer.data(), begin, count);
    hash.add(buffer.data(), count);
    begin += count;
    bytes -= count;
  }
}

void add_file(files::ContentHash& hash, const std::string& path) {
  const files::FileReader file(path);
  const uint64_t data_begin = files::read_tensors(file).header_end;
  hash.add(static_cast<int64_t>(file.size()));
  add_range(hash, file, 0, data_begin);
  const uint64_t data_bytes = file.size() - data_begin;
  if (data_bytes <= kNumBlocks * kBlockBytes) {
    add_range(hash, file, data_begin, data_bytes);
    return;
  }
  // The first block is at the begin of the tensors, the last one at their end.
  const uint64_t room = data_bytes - kBlockBytes;
  for (uint64_t i = 0; i + 1 < kNumBlocks; ++i)
    add_range(hash, file, data_begin + room / (kNumBlocks - 1) * i, kBlockBytes);
  add_range(hash, file, data_begin + room, kBlockBytes);
}

void add_config(files::ContentHash& hash, const TensorIndex::Config& config) {
  for (const auto& [key, value] : config) {
    hash.add(key).add(static_cast<int64_t>(value.index()));
    if (const auto* text = std::get_if<std::string>(&value)) {
      hash.add(*text);
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      hash.add(*integer);
    } else if (const auto* real = std::get_if<double>(&value)) {
      hash.add(real, sizeof *real);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      hash.add(static_cast<int64_t>(*flag));
    } else if (const auto* list = std::get_if<std::vector<double>>(&value)) {
      hash.add(static_cast<int64_t>(list->size())).add(list->data(), list->size() * sizeof(double));
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      hash.add(static_cast<int64_t>(texts->size()));
      for (const std::string& text : *texts) hash.add(text);
    }
  }
}

}  // namespace

std::string fingerprint(const LoadedPart& part) {
  return fingerprint(part.detection, part.checkpoint);
}

std::string fingerprint(const Detection& detection, const files::Checkpoint& checkpoint) {
  files::ContentHash hash;
  hash.add(detection.component).add(detection.variant).add(detection.prefix);
  add_config(hash, detection.config);
  for (const std::string& path : checkpoint.files()) add_file(hash, path);
  return hash.hex();
}

std::string tokenizer_fingerprint(const std::string& path) {
  static constexpr std::array kNames = {
      "tokenizer.json", "tokenizer.model",       "spiece.model",     "vocab.json",
      "merges.txt",     "tokenizer_config.json", "added_tokens.json"};
  std::error_code failure;
  files::ContentHash hash;
  const fs::path given(path);
  const fs::path folder = given.filename() == "vocab.json" ? given.parent_path() : given;
  if (!fs::is_directory(folder, failure)) return hash.add(files::hash_file(path)).hex();
  for (const char* name : kNames) {
    const fs::path file = folder / name;
    if (fs::is_regular_file(file, failure)) hash.add(name).add(files::hash_file(file.string()));
  }
  return hash.hex();
}

}  // namespace atelier::model
