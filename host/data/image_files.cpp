#include "host/data/image_files.h"

#include <utility>

#include "host/data/parallel.h"
#include "host/files/content_hash.h"
#include "host/inputs/parse.h"

namespace atelier::data {

const inputs::ImageFile& DataFiles::of(InputKind kind, const std::string& path) const {
  return (inputs::is_sound(kind) ? heard : seen).find(path)->second;
}

ImageFiles check_files(const FileKinds& kinds, bool decode_all) {
  ImageFiles files;
  std::vector<std::pair<ImageFiles::value_type*, InputKind>> entries;
  entries.reserve(kinds.size());
  for (const auto& [path, kind] : kinds) {
    entries.emplace_back(&*files.emplace_hint(files.end(), path, inputs::ImageFile{}), kind);
  }
  for_each_in_parallel(entries.size(), [&](size_t i) {
    auto& [entry, kind] = entries[i];
    entry->second = inputs::check_file(kind, entry->first, decode_all);
  });
  return files;
}

std::map<std::string, std::string> find_copies(const std::vector<std::string>& paths,
                                               const ImageFiles& files) {
  std::map<int64_t, std::vector<const std::string*>> by_length;
  for (const std::string& path : paths) {
    const inputs::ImageFile& file = files.at(path);
    if (!file.error) by_length[file.bytes].push_back(&path);
  }
  std::vector<const std::string*> alike;
  for (const auto& [bytes, same] : by_length) {
    if (same.size() > 1) alike.insert(alike.end(), same.begin(), same.end());
  }
  std::vector<std::string> hashes(alike.size());
  for_each_in_parallel(alike.size(), [&](size_t i) {
    try {
      hashes[i] = files::hash_file(*alike[i]);
    } catch (const Error&) {
      hashes[i] = *alike[i];  // gone meanwhile: like no other
    }
  });
  std::map<std::string, std::string> first_of, copies;
  for (size_t i = 0; i < alike.size(); ++i) {
    const auto [first, is_new] = first_of.emplace(hashes[i], *alike[i]);
    if (!is_new && first->second != *alike[i]) copies.emplace(*alike[i], first->second);
  }
  return copies;
}

}  // namespace atelier::data
