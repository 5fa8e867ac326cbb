#include "host/data/folder_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

#include "atelier/error.h"

#include "host/files/file_reader.h"
#include "host/files/run_mark.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array kImageEndings = {".png",  ".jpg", ".jpeg", ".webp", ".bmp",  ".gif",  ".tif",
                                      ".tiff", ".ppm", ".pgm",  ".pbm",  ".avif", ".heic", ".jxl"};
constexpr std::array kClipEndings = {".mp4", ".m4v",  ".mov", ".mkv", ".webm", ".avi",
                                     ".mpg", ".mpeg", ".ts",  ".wmv", ".flv"};

bool ends_in(const fs::path& name, std::span<const char* const> endings) {
  std::string ending = name.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::find(endings, ending) != endings.end();
}

}  // namespace

bool is_image_name(const fs::path& name) {
  return ends_in(name, kImageEndings);
}

bool is_clip_name(const fs::path& name) {
  return ends_in(name, kClipEndings);
}

std::set<std::string> files_below(const fs::path& folder) {
  std::set<std::string> files;
  std::error_code failure;
  fs::recursive_directory_iterator entry(folder, failure), end;
  while (!failure && entry != end) {
    const bool is_hidden = entry->path().filename().string().starts_with('.');
    std::error_code unknown;
    if (is_hidden || fs::exists(entry->path() / files::kRunMark, unknown)) {
      entry.disable_recursion_pending();
    } else if (!entry->is_directory(unknown)) {
      files.insert(entry->path().lexically_relative(folder).string());
    }
    entry.increment(failure);
  }
  if (failure) {
    throw Error(failure == std::errc::no_such_file_or_directory ? ErrorCode::kNotFound
                                                                : ErrorCode::kEnvironment,
                files::display_path(folder.string()) + ": " + failure.message(), "check the folder",
                "FILE_OPEN");
  }
  return files;
}

}  // namespace atelier::data
