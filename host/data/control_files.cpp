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

// Files of one row, by their place: the number behind the name, and -1 without one.
using Places = std::map<int64_t, std::vector<std::string>>;

// The names of the rows, told together.
void tell(const std::string& what, const std::vector<std::string>& rows, const std::string& hint,
          Findings& problems) {
  if (rows.empty()) return;
  problems.add(kKind, "--control_path: " + what + report::list_names(rows, kMostNames), hint,
               ErrorCode::kNotFound);
}

}  // namespace

const InputSpec& control_input(std::span<const InputSpec> inputs,
                               const std::vector<std::string>& extra_inputs) {
  std::vector<const InputSpec*> all, named;
  for (const InputSpec& input : inputs) {
    if (!takes_files(input)) continue;
    all.push_back(&input);
    if (std::ranges::count(extra_inputs, input.name) > 0) named.push_back(&input);
  }
  if (all.empty())
    throw Error(ErrorCode::kUnsupported,
                "this family is trained with no images beside the ones to learn", "leave it out");
  const std::vector<const InputSpec*>& from = named.empty() ? all : named;
  if (from.size() == 1) return *from.front();
  std::vector<std::string> names;
  for (const InputSpec* input : from) names.emplace_back(input->name);
  throw Error(ErrorCode::kInvalidArgument,
              "its files may be of " + report::list_names(names) + ", and one input takes them",
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
  const std::string name(control.name), folder = files::display_path(options.control_path);
  const fs::path base = absolute(options.dataset_base_path),
                 of_controls = absolute(options.control_path);
  if (base == of_controls) {
    problems.add(kKind, "--control_path: " + folder + " is the folder of the images to learn",
                 "put the others into a folder of their own");
    metadata.records.clear();
    return;
  }
  std::set<std::string> files;
  try {
    files = files_below(options.control_path);
  } catch (const Error& error) {
    problems.add(kKind, Error(error.code(), "--control_path: " + error.message(), error.hint(),
                              error.tag()));
    metadata.records.clear();
    return;
  }

  // What rows are called, relative to the base path and without their endings.
  std::vector<std::pair<size_t, std::string>> rows;
  std::map<std::string, Places> files_of;
  for (size_t i = 0; i < metadata.records.size(); ++i) {
    const nlohmann::json& values = metadata.records[i].values;
    const auto file = values.find(target);
    if (file == values.end() || !file->is_string() || values.contains(name)) continue;
    const fs::path whole = (base / file->get<std::string>()).lexically_normal();
    rows.emplace_back(i, without_ending(whole.lexically_relative(base).string()));
    files_of.emplace(rows.back().second, Places{});
  }
  const std::string learnt = base.lexically_relative(of_controls).string() + "/";
  std::vector<std::string> strangers;
  for (const std::string& file : files) {
    const bool is_read =
        is_image_name(file) || (inputs::is_clip(control.kind) && is_clip_name(file));
    if (!is_read || file.starts_with(learnt)) continue;
    const std::string stem = without_ending(file);
    const auto number = split_number(stem);
    if (const auto whole = files_of.find(stem); whole != files_of.end()) {
      whole->second[-1].push_back(file);
    } else if (const auto of = number ? files_of.find(number->first) : files_of.end();
               of != files_of.end()) {
      of->second[number->second].push_back(file);
    } else {
      strangers.push_back(file);
    }
  }

  std::vector<std::string> without, doubtful;
  std::vector<char> is_left_out(metadata.records.size(), 0);
  for (const auto& [row, stem] : rows) {
    Record& record = metadata.records[row];
    nlohmann::json paths = nlohmann::json::array();
    bool is_doubtful = false;
    for (const auto& [place, alike] : files_of.at(stem)) {
      is_doubtful |= alike.size() > 1;
      paths.push_back((of_controls / alike.front()).lexically_relative(base).string());
    }
    is_left_out[row] = is_doubtful || paths.empty();
    if (is_left_out[row] != 0) {
      (is_doubtful ? doubtful : without).push_back(record.place);
    } else {
      record.values[name] = paths.size() == 1 ? paths.front() : std::move(paths);
    }
  }
  tell(folder + " holds nothing for " + std::to_string(without.size()) + " of " +
           std::to_string(rows.size()) + " rows: ",
       without, "call a file as the image is, or several with _0, _1 behind its name", problems);
  tell(folder + " holds files of one place for " + std::to_string(doubtful.size()) + " of " +
           std::to_string(rows.size()) + " rows: ",
       doubtful, "keep one of those that differ in their ending alone, as a.png and a.jpg do",
       problems);
  if (!strangers.empty())
    odd.add(kKind,
            "--control_path: " + folder + " holds files that are called as no row is: " +
                report::list_names(strangers, kMostNames),
            "they are not used");
  std::vector<Record> kept;
  for (size_t i = 0; i < metadata.records.size(); ++i) {
    if (is_left_out[i] == 0) kept.push_back(std::move(metadata.records[i]));
  }
  metadata.records = std::move(kept);
  if (!std::ranges::count(metadata.columns, name)) metadata.columns.push_back(name);
}

}  // namespace atelier::data
