#include "host/data/path_suggester.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utf8proc.h>

#include "host/files/file_reader.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

// `text` in Unicode form C; what is not UTF-8 stays as it is.
std::string compose(const std::string& text, int more_options = 0) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &composed,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | more_options));
  if (length < 0) return text;
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, std::free);
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(length)};
}

// The name without case, ending, spaces around it and differences of Unicode forms.
std::string fold(const std::string& name) {
  const std::string stem = fs::path(name).stem().string();
  const size_t first = stem.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return compose(stem.substr(first, stem.find_last_not_of(' ') - first + 1), UTF8PROC_CASEFOLD);
}

}  // namespace

const PathSuggester::Names& PathSuggester::names_in(const std::string& folder) {
  const auto [entry, is_new] = folders_.try_emplace(folder);
  if (!is_new) return entry->second;
  std::error_code failure;
  fs::directory_iterator file(folder, failure);
  for (const fs::directory_iterator end; !failure && file != end; file.increment(failure)) {
    const std::string name = file->path().filename().string();
    entry->second.emplace(fold(name), name);
  }
  return entry->second;
}

std::string PathSuggester::hint(const std::string& path) {
  const fs::path file(path);
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code failure;
  if (path.find('\\') != std::string::npos) return "write paths with / instead of \\";
  if (!fs::is_directory(folder, failure))
    return "there is no folder " + files::display_path(folder.string());
  const Names& names = names_in(folder.string());
  const auto near = names.find(fold(file.filename().string()));
  if (near == names.end()) return "check the path and --dataset_base_path";
  if (near->second == file.filename().string()) return "it is a link to what is not there";
  if (compose(near->second) == compose(file.filename().string()))
    return "a file of this name is there in another Unicode form (NFC, NFD); write it as the disk "
           "does";
  return "did you mean " + files::display_path(near->second) + "?";
}

}  // namespace atelier::data
