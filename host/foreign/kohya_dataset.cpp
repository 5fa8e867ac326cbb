#include "host/foreign/kohya_dataset.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/list.h"
#include "formats/parse_error.h"
#include "formats/toml_names.h"
#include "host/data/folder_files.h"
#include "host/files/file_reader.h"
#include "host/flags/compat_flags.h"
#include "host/report/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace atelier::foreign {
namespace {

using formats::quote_and_escape;
using Fate = flags::CompatFate;

// Keys of musubi-tuner's datasets, which have no subsets.
constexpr std::string_view kSources[] = {"image_directory", "video_directory", "image_jsonl_file",
                                         "video_jsonl_file"};
constexpr std::string_view kClipKeys[] = {"target_frames", "frame_extraction", "max_frames"};

template <size_t N>
bool is_one_of(std::string_view key, const std::string_view (&keys)[N]) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}

int64_t pixels_of(const std::string& text) {
  const int64_t pixels = report::parse_number<int64_t>(text).value_or(0);
  if (pixels < 1 || pixels > 1'000'000)
    throw Error(ErrorCode::kInvalidArgument, quote_and_escape(text) + " is no number of pixels");
  return pixels;
}

// N of a folder's name, N_words; 0: it has none.
int64_t repeats_of(const std::string& name) {
  const auto count = report::parse_number<int64_t>(name.substr(0, name.find('_')));
  return std::max<int64_t>(count.value_or(0), 0);
}

// What is in a folder of images.
struct Folders {
  std::map<std::string, int64_t> repeats;  // N of each N_words
  bool has_others = false;                 // images or folders that are not learnt there

  // All of it is learnt equally often.
  bool is_even() const {
    return !has_others && std::ranges::all_of(repeats, [&](const auto& folder) {
      return folder.second == repeats.begin()->second;
    });
  }
};

Folders read_folders(const std::filesystem::path& folder) {
  Folders found;
  std::error_code failure, unknown;
  for (std::filesystem::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    const bool is_folder = entry->is_directory(unknown);
    if (is_folder && repeats_of(name) > 0)
      found.repeats[name] = repeats_of(name);
    else if (!name.starts_with('.'))
      found.has_others |= is_folder || data::is_image_name(name);
  }
  if (failure)
    throw Error(ErrorCode::kEnvironment,
                files::display_path(folder.string()) + ": " + failure.message(),
                "check the folder");
  return found;
}

// As it would be written on the command line; lists between commas.
std::string text_of(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto integer = node.value_exact<int64_t>()) return std::to_string(*integer);
  if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
  if (const auto real = node.value_exact<double>()) return report::number_text(*real);
  std::string out;
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& item : *array) out.append(out.empty() ? "" : ",").append(text_of(item));
  } else {  // a date or a time
    std::ostringstream written;
    node.visit([&](const auto& value) { written << value; });
    out = written.str();
  }
  return out;
}

// What a file says that `flag` names goes to `read`; what is wrong with it becomes a problem.
template <typename Read>
void read_toml(const std::string& flag, const std::string& path, const std::string& way_out,
               report::Problems& problems, const Read& read) {
  std::string text;
  try {
    text = files::read_text_file(path);
  } catch (const Error& error) {
    problems.add(flag + ": " + error.message(), way_out, error.code());
    return;
  }
  try {
    formats::check_toml_names(text);
    read(toml::parse(text));
  } catch (const formats::ParseError& error) {
    problems.add(files::at_file(path, error, ErrorCode::kInvalidArgument).at(flag));
  } catch (const toml::parse_error& error) {
    problems.add(flag + ": " + files::display_path(path) + ":" +
                     std::to_string(error.source().begin.line) + ": " +
                     std::string(error.description()),
                 "TOML is expected");
  }
}

// Its values as words of a command line; nullopt: it is off.
std::optional<std::vector<std::string>> words_of(const toml::node& node) {
  if (const auto truth = node.value_exact<bool>())
    return *truth ? std::optional(std::vector<std::string>()) : std::nullopt;
  std::vector<std::string> words;
  if (const toml::array* array = node.as_array()) {
    for (const toml::node& item : *array) words.push_back(text_of(item));
  } else if (std::string text = text_of(node); !text.empty()) {
    words.push_back(std::move(text));
  }
  return words.empty() ? std::nullopt : std::optional(std::move(words));
}

// One dataset's settings: those of its subset above its own, and [general] below both.
class Reader {
 public:
  Reader(std::string place, report::Problems& problems)
      : place_(std::move(place)), problems_(problems) {}

  FlagValues read(const toml::table& file) {
    const toml::table* dataset = one_of(file, "datasets");
    is_musubi_ = dataset != nullptr && std::ranges::any_of(kSources, [&](std::string_view key) {
                   return dataset->contains(key);
                 });
    is_of_clips_ = is_musubi_ &&
                   (dataset->contains("video_directory") || dataset->contains("video_jsonl_file"));
    const toml::table* subset =
        dataset == nullptr || is_musubi_ ? nullptr : one_of(*dataset, "subsets");
    for (const auto& [key, node] : file) {
      if (key.str() != "general" && key.str() != "datasets") lost(key.str());
    }
    // The first that says something counts.
    for (const toml::table* table : {subset, dataset, file["general"].as_table()}) {
      if (table == nullptr) continue;
      for (const auto& [key, node] : *table) {
        if (node.is_array_of_tables() || !seen(key.str())) continue;
        take(std::string(key.str()), node);
      }
    }
    finish();
    return std::move(values_);
  }

 private:
  const toml::table* one_of(const toml::table& table, std::string_view key) {
    const toml::array* all = table[key].as_array();
    const size_t count = all == nullptr ? 0 : all->size();
    if (count == 1) return all->front().as_table();
    problems_.add(place_ + ": holds " + std::to_string(count) + " [[" + std::string(key) +
                      "]], and a run has one",
                  count == 0 ? "write [[datasets]] and [[datasets.subsets]]"
                             : "join them into one folder, or one metadata file with all rows");
    return nullptr;
  }

  // True at first sight.
  bool seen(std::string_view key) {
    if (std::find(seen_.begin(), seen_.end(), key) != seen_.end()) return false;
    seen_.emplace_back(key);
    return true;
  }

  void lost(std::string_view key, std::string_view why = "nothing here corresponds to it") {
    // As TOML itself writes a name.
    const bool is_bare = std::ranges::all_of(
        key, [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; });
    problems_.add(place_ + ": " + (is_bare ? std::string(key) : quote_and_escape(key)) +
                  " is left out: " + std::string(why));
  }

  void take(const std::string& key, const toml::node& node) {
    if (key == "resolution") {
      resolution_ = text_of(node);
      return;
    }
    if (is_of_clips_ && is_one_of(key, kClipKeys)) {
      clips_[key] = text_of(node);
      return;
    }
    if (is_of_clips_ && key == "control_directory")
      return lost(key,
                  "a metadata file names both: --dataset_metadata_path with columns video, prompt "
                  "and the input of --extra_inputs");
    const flags::CompatFlag* known = flags::find_compat_flag(key, flags::kDataset);
    if (known == nullptr) known = flags::find_compat_flag(key, flags::kKohya);
    const std::string text = text_of(node);
    if (known != nullptr && known->fate == Fate::kRenamed && (known->origins & flags::kDataset))
      return static_cast<void>(values_.emplace_back(known->name_here(), text));
    // Off, zero and empty are what is done without it.
    if (text.empty() || text == "false" || text == "0" || text == "0.0") return;
    if (known == nullptr) return lost(key);
    if (known->fate == Fate::kIdle || known->is_harmless(text)) return;
    if (known->fate != Fate::kLost) return lost(key);
    lost(key, known->text);
  }

  bool says(std::string_view flag) const {
    return std::ranges::any_of(values_, [&](const auto& value) { return value.first == flag; });
  }

  // Lengths of pieces, which their trainer rounds down, each once; "full" is a beginning of
  // max_frames.
  void finish_clips() {
    const auto text = [&](const char* key, const char* otherwise) {
      const auto found = clips_.find(key);
      return found == clips_.end() || found->second.empty() ? otherwise : found->second;
    };
    const std::string extraction = text("frame_extraction", "head");
    const bool is_full = extraction == "full";
    const std::string given = is_full ? text("max_frames", "129") : text("target_frames", "1");
    std::set<int64_t> lengths;
    for (const std::string& length : formats::parse_list(given)) {
      const auto frames = report::parse_number<int64_t>(length);
      if (frames.value_or(0) < 1)
        return lost(is_full ? "max_frames" : "target_frames",
                    quote_and_escape(length) + " is no number of frames");
      lengths.insert((*frames - 1) / 4 * 4 + 1);
    }
    std::string said;
    for (const int64_t frames : lengths) said += (said.empty() ? "" : ",") + std::to_string(frames);
    values_.emplace_back("num_frames", said);
    values_.emplace_back("frame_extraction", is_full ? "head" : extraction);
    if (!says("source_fps")) values_.emplace_back("keep_frame_rate", "true");
  }

  void finish() {
    if (is_of_clips_) finish_clips();
    const bool has_buckets =
        std::find(values_.begin(), values_.end(),
                  std::pair<std::string, std::string>("enable_bucket", "true")) != values_.end();
    if (!resolution_) return;
    try {
      for (auto& value : flags_of_resolution(*resolution_, has_buckets))
        values_.push_back(std::move(value));
    } catch (const Error& error) {
      problems_.add(error.at(place_ + ": resolution"));
    }
  }

  std::string place_;
  report::Problems& problems_;
  FlagValues values_;
  std::vector<std::string> seen_;
  bool is_musubi_ = false, is_of_clips_ = false;
  std::map<std::string, std::string, std::less<>> clips_;  // by kClipKeys
  std::optional<std::string> resolution_;
};

}  // namespace

FlagValues read_kohya_dataset(const std::string& path, report::Problems& problems) {
  FlagValues values;
  read_toml(
      "--dataset_config", path, "run this where the file is, or add --dataset_base_path FOLDER",
      problems, [&](const toml::table& file) {
        values = Reader("--dataset_config: " + files::display_path(path), problems).read(file);
      });
  return values;
}

std::vector<FileFlag> read_kohya_config(const std::string& path, report::Problems& problems) {
  std::vector<FileFlag> flags;
  const auto add_all = [&](const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (node.is_table()) continue;
      if (auto words = words_of(node))
        flags.push_back({key.source().begin.line, std::string(key.str()), std::move(*words)});
    }
  };
  read_toml("--config_file", path, "run this where the file is", problems,
            [&](const toml::table& file) {
              add_all(file);
              for (const auto& [key, node] : file) {
                if (const toml::table* section = node.as_table()) add_all(*section);
              }
            });
  std::ranges::stable_sort(flags, {}, &FileFlag::line);
  return flags;
}

FlagValues flags_of_folders(const std::string& folder) {
  const Folders found = read_folders(folder);
  if (found.repeats.empty()) return {{"dataset_base_path", folder}};
  const auto& [name, count] = *found.repeats.begin();
  if (found.repeats.size() > 1 && !found.is_even())
    throw Error(ErrorCode::kInvalidArgument,
                files::display_path(folder) + " holds " + std::to_string(found.repeats.size()) +
                    " folders N_words that are not learnt alike, and a run has one dataset",
                "join them into one folder, or one metadata file with all rows");
  const std::filesystem::path path(folder);
  return {{"dataset_base_path", found.repeats.size() > 1 ? folder : (path / name).string()},
          {"dataset_repeat", std::to_string(count)}};
}

FlagValues flags_of_resolution(const std::string& text, bool has_buckets) {
  const std::vector<std::string> sides = formats::parse_list(text);
  if (sides.empty() || sides.size() > 2)
    throw Error(ErrorCode::kInvalidArgument, quote_and_escape(text) + " is no size",
                "write 1024, or 1024,768 with the width first");
  const int64_t width = pixels_of(sides.front()), height = pixels_of(sides.back());
  if (has_buckets) return {{"max_pixels", std::to_string(width * height)}};
  return {{"height", std::to_string(height)}, {"width", std::to_string(width)}};
}

}  // namespace atelier::foreign
