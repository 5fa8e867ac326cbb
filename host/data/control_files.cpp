#include "host/data/control_files.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "atelier/error.h"

#include "host/data/folder_files.h"
#include "host/files/file_reader.h"
#include "host/inputs/parse.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKind = "control images";
constexpr size_t kMostNames = 3;  // of rows in one message

// Without a separator at its end; an empty path is the working folder.
fs::path absolute(const std::string& path) {
  const fs::path whole = fs::absolute(path.empty() ? "." : path).lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

bool takes_files(const InputSpec& input) {
  return input.role == InputRole::kCondition && input.use != InputUse::kGenerate &&
         (input.kind == InputKind::kImage || input.kind == InputKind::kVideo);
}

std::string without_ending(const std::string& file) {
  return fs::path(file).replace_extension().string();
}

// "sub/a_12" as "sub/a" and 12; nullopt where it ends in no number.
std::optional<std::pair<std::string, int64_t>> split_number(const std::string& stem) {
  const size_t line = stem.rfind('_');
  if (line == std::string::npos || line == 0 || stem[line - 1] == '/') return std::nullopt;
  const std::string digits = stem.substr(line + 1);
  const bool is_number = !digits.empty() && std::ranges::all_of(digits, [](unsigned char c) {
    return std::isdigit(c) != 0;
  });
  const auto number = is_number ? report::parse_number<int64_t>(digits) : std::nullopt;
  if (!number) return std::nullopt;
  return std::pair(stem.substr(0, line), *number);
}

// The rows that get files, and the files that they get.
class Matching {
 public:
  Matching(const DatasetOptions& options, std::string_view target, const InputSpec& control)
      : options_(options),
        target_(target),
        control_(control),
        base_(absolute(options.dataset_base_path)),
        folder_(absolute(options.control_path)) {}

  // Throws Error where the folder cannot be used.
  void run(Metadata& metadata) {
    if (base_ == folder_)
      throw Error(
          ErrorCode::kInvalidArgument,
          files::display_path(options_.control_path) + " is the folder of the images to learn",
          "put the others into a folder of their own");
    const std::set<std::string> files = files_below(options_.control_path);
    find_rows(metadata);
    for (const std::string& file : files) place(file);
    give(metadata);
  }

  void report(Findings& problems, Findings& odd) const {
    const std::string folder =
        options_.control_flag + ": " + files::display_path(options_.control_path);
    const auto report_rows = [&](const std::string& what, const std::vector<std::string>& rows,
                                 const std::string& hint) {
      if (rows.empty()) return;
      problems.add(kKind,
                   folder + what + std::to_string(rows.size()) + " of " +
                       std::to_string(rows_.size()) +
                       " rows: " + report::list_names(rows, kMostNames),
                   hint, ErrorCode::kNotFound);
    };
    report_rows(" holds nothing for ", without_,
                "call a file as the image is, or several with _0, _1 behind its name");
    report_rows(" holds files of one place for ", doubtful_,
                "keep one of those that differ in their ending alone, as a.png and a.jpg do");
    if (!strangers_.empty())
      odd.add(kKind,
              folder + " holds files that are called as no row is: " +
                  report::list_names(strangers_, kMostNames),
              "they are not used");
  }

 private:
  // Files of one row, by their place: the number behind the name, and -1 without one.
  using Places = std::map<int64_t, std::vector<std::string>>;

  // Rows without a value for the input, by what their files are called: relative to the base path
  // and without their endings.
  void find_rows(const Metadata& metadata) {
    for (size_t i = 0; i < metadata.records.size(); ++i) {
      const nlohmann::json& values = metadata.records[i].values;
      const auto file = values.find(target_);
      if (file == values.end() || !file->is_string() || values.contains(control_.name)) continue;
      const fs::path whole = (base_ / file->get<std::string>()).lexically_normal();
      rows_.emplace(i, without_ending(whole.lexically_relative(base_).string()));
      files_of_.emplace(rows_.at(i), Places{});
    }
  }

  void place(const std::string& file) {
    const std::string learnt = base_.lexically_relative(folder_).string() + "/";
    const bool is_read =
        is_image_name(file) || (inputs::is_clip(control_.kind) && is_clip_name(file));
    if (!is_read || file.starts_with(learnt)) return;
    const std::string stem = without_ending(file);
    const auto number = split_number(stem);
    if (const auto whole = files_of_.find(stem); whole != files_of_.end()) {
      whole->second[-1].push_back(file);
    } else if (const auto of = number ? files_of_.find(number->first) : files_of_.end();
               of != files_of_.end()) {
      of->second[number->second].push_back(file);
    } else {
      strangers_.push_back(file);
    }
  }

  // Rows that get none, or for which two have one place, are taken out.
  void give(Metadata& metadata) {
    std::vector<Record> kept;
    for (size_t i = 0; i < metadata.records.size(); ++i) {
      Record& record = metadata.records[i];
      const auto row = rows_.find(i);
      if (row == rows_.end() || give(record, files_of_.at(row->second)))
        kept.push_back(std::move(record));
    }
    metadata.records = std::move(kept);
    if (!std::ranges::count(metadata.columns, control_.name))
      metadata.columns.emplace_back(control_.name);
  }

  bool give(Record& record, const Places& places) {
    nlohmann::json paths = nlohmann::json::array();
    for (const auto& [place, alike] : places) {
      if (alike.size() > 1) {
        doubtful_.push_back(record.place);
        return false;
      }
      paths.push_back((folder_ / alike.front()).lexically_relative(base_).string());
    }
    if (paths.empty()) {
      without_.push_back(record.place);
      return false;
    }
    record.values[std::string(control_.name)] = paths.size() == 1 ? paths.front() : paths;
    return true;
  }

  const DatasetOptions& options_;
  const std::string target_;
  const InputSpec& control_;
  const fs::path base_, folder_;
  std::map<size_t, std::string> rows_;  // by their place in the table
  std::map<std::string, Places> files_of_;
  std::vector<std::string> strangers_, without_, doubtful_;
};

}  // namespace

const InputSpec& control_input(std::span<const InputSpec> inputs,
                               const std::vector<std::string>& extra_inputs,
                               std::string_view variant) {
  std::vector<const InputSpec*> all, named, needed;
  int64_t needed_by_all = 0;
  for (const InputSpec& input : inputs) {
    if (!takes_files(input)) continue;
    if (!variant.empty() && !inputs::holds_for(input, variant)) continue;
    all.push_back(&input);
    if (variant.empty() ? input.required : inputs::is_required(input, variant))
      needed.push_back(&input);
    if (inputs::is_required(input, variant)) ++needed_by_all;
    if (std::ranges::count(extra_inputs, input.name) > 0) named.push_back(&input);
  }
  if (all.empty())
    throw Error(ErrorCode::kUnsupported,
                "this model is trained with no images beside the ones to learn", "leave it out");
  const std::vector<const InputSpec*>& from = named.empty() ? all : named;
  if (from.size() == 1) return *from.front();
  // Where one is needed, files that nobody named are its.
  const bool is_one = needed.size() == 1 || (variant.empty() && needed_by_all < 2);
  if (named.empty() && !needed.empty() && is_one) return *needed.front();
  std::vector<std::string> names;
  for (const InputSpec* input : from) names.emplace_back(input->name);
  throw Error(ErrorCode::kInvalidArgument,
              "its files may be of " + report::list_names(names, 3) + ", and one input takes them",
              named.empty() ? "name it with --extra_inputs"
                            : "name one of them with --extra_inputs, or all files in a table with "
                              "--dataset_metadata_path");
}

std::string control_folder(const DatasetOptions& options) {
  return absolute(options.control_path)
      .lexically_relative(absolute(options.dataset_base_path))
      .string();
}

void add_control_files(const DatasetOptions& options, std::string_view target,
                       const InputSpec& control, Metadata& metadata, Findings& problems,
                       Findings& odd) {
  Matching matching(options, target, control);
  try {
    matching.run(metadata);
  } catch (const Error& error) {
    problems.add(kKind, error.at(options.control_flag));
    metadata.records.clear();
    return;
  }
  matching.report(problems, odd);
}

}  // namespace atelier::data
