#include <filesystem>
#include <set>

#include "atelier/error.h"

#include "host/data/folder_files.h"
#include "host/data/metadata.h"
#include "host/files/file_reader.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMaskEnding = "-masklabel.png";

std::string read_caption(const std::string& path) {
  const std::string bytes = files::read_text_file(path, kMaxRowBytes);
  const std::string_view text = checked_utf8(bytes, path);
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

}  // namespace

Metadata read_caption_folder(const std::string& folder, const std::string& caption_extension,
                             bool with_clips, Findings& problems, const std::string& left_out) {
  const std::set<std::string> files = files_below(folder);
  std::string other_way;
  for (const char* name : {"metadata.csv", "metadata.jsonl", "metadata.json"}) {
    if (files.contains(name) && other_way.empty())
      other_way = ", or pass --dataset_metadata_path " +
                  files::display_path((fs::path(folder) / name).string());
  }
  Metadata metadata = {folder, {"image", "prompt"}, {}, {}};
  for (const std::string& file : files) {
    const bool is_learnt = is_image_name(file) || (with_clips && is_clip_name(file));
    const bool is_left_out = !left_out.empty() && file.starts_with(left_out + "/");
    if (!is_learnt || is_left_out || file.ends_with(kMaskEnding)) continue;
    const std::string stem = fs::path(file).replace_extension().string();
    Record record = {0, files::display_path((fs::path(folder) / file).string())};
    record.values["image"] = file;
    record.values["prompt"] = "";  // until it is read; what has none is checked all the same
    const std::string caption = (fs::path(folder) / (stem + caption_extension)).string();
    if (files.contains(stem + caption_extension)) {
      try {
        record.values["prompt"] = read_caption(caption);
      } catch (const Error& error) {
        problems.add("unreadable captions", error.at(record.place + " [prompt]"));
      }
    } else {
      problems.add("missing captions",
                   record.place + " [prompt]: no caption in " + files::display_path(caption),
                   "write the file, empty for no caption" + other_way);
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
