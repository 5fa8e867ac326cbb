#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <span>

#include "atelier/error.h"

#include "host/data/metadata.h"
#include "host/files/file_reader.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMaskEnding = "-masklabel.png";

// Also formats that cannot be read here: an image is told of, not passed over.
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

// Paths of all files below `folder`, relative to it and sorted; hidden ones are left out.
std::set<std::string> files_below(const fs::path& folder) {
  std::set<std::string> files;
  std::error_code failure;
  fs::recursive_directory_iterator entry(folder, failure), end;
  while (!failure && entry != end) {
    const bool is_hidden = entry->path().filename().string().starts_with('.');
    std::error_code unknown;
    if (is_hidden) {
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

std::string read_caption(const std::string& path) {
  const std::string bytes = files::read_text_file(path, kMaxRowBytes);
  const std::string_view text = checked_utf8(bytes, path);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

}  // namespace

Metadata read_caption_folder(const std::string& folder, const std::string& caption_extension,
                             bool with_clips, Findings& problems) {
  const std::set<std::string> files = files_below(folder);
  std::string other_way;
  for (const char* name : {"metadata.csv", "metadata.jsonl", "metadata.json"}) {
    if (files.contains(name) && other_way.empty())
      other_way = ", or pass --dataset_metadata_path " +
                  files::display_path((fs::path(folder) / name).string());
  }
  Metadata metadata = {folder, {"image", "prompt"}, {}};
  for (const std::string& file : files) {
    const bool is_learnt =
        ends_in(file, kImageEndings) || (with_clips && ends_in(file, kClipEndings));
    if (!is_learnt || file.ends_with(kMaskEnding)) continue;
    const std::string stem = fs::path(file).replace_extension().string();
    Record record = {0, files::display_path((fs::path(folder) / file).string())};
    record.values["image"] = file;
    const std::string caption = (fs::path(folder) / (stem + caption_extension)).string();
    if (files.contains(stem + caption_extension)) {
      try {
        record.values["prompt"] = read_caption(caption);
      } catch (const Error& error) {
        problems.add("unreadable captions", error.at(record.place + " [prompt]"));
        continue;
      }
    } else {
      problems.add("missing captions",
                   record.place + " [prompt]: no caption in " + files::display_path(caption),
                   "write the file, empty for no caption" + other_way);
      continue;
    }
    if (std::string mask = stem + kMaskEnding; files.contains(mask)) {
      if (metadata.columns.size() == 2) metadata.columns.emplace_back("mask");
      record.values["mask"] = std::move(mask);
    }
    metadata.records.push_back(std::move(record));
  }
  if (metadata.records.empty() && problems.count() == 0) {
    problems.add("empty folders", files::display_path(folder) + ": no images below it",
                 "put images and captions there" + other_way);
  }
  return metadata;
}

}  // namespace atelier::data
