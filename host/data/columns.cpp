#include "host/data/columns.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <filesystem>

#include "formats/escape.h"
#include "formats/json.h"
#include "host/files/file_reader.h"
#include "host/report/problems.h"

namespace atelier::data {
namespace {

using formats::quote_and_escape;
using nlohmann::json;

constexpr std::string_view kColumns = "columns";
constexpr size_t kMaxChars = 80;  // of a value that a message shows
constexpr std::string_view kMissingValues = "missing values";
constexpr std::string_view kWrongValues = "wrong values";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A text in quotes, and anything else as JSON.
std::string shown(const json& value) {
  if (value.is_string()) return quote_and_escape(value.get_ref<const std::string&>(), kMaxChars);
  const std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kMaxChars ? text : text.substr(0, kMaxChars) + "…";
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<json> read_integer(const json& value) {
  if (value.is_string()) {
    if (const auto number = parse_number<int64_t>(value.get_ref<const std::string&>()))
      return json(*number);
    return std::nullopt;
  }
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX});
  return fits ? std::optional(value) : std::nullopt;
}

std::optional<json> read_real(const json& value) {
  std::optional<double> number;
  if (value.is_number()) number = value.get<double>();
  if (value.is_string()) number = parse_number<double>(value.get_ref<const std::string&>());
  return number && std::isfinite(*number) ? std::optional(json(*number)) : std::nullopt;
}

std::optional<json> read_flag(const json& value) {
  if (value.is_boolean()) return value;
  if (!value.is_string()) return std::nullopt;
  std::string text = value.get<std::string>();
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (text == "true" || text == "1") return json(true);
  if (text == "false" || text == "0") return json(false);
  return std::nullopt;
}

// The paths of a cell: one, or a JSON list of them, which a csv holds as text.
std::vector<std::string> read_list(const json& value) {
  json list = value;
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (!text.starts_with('[') || !text.ends_with(']')) return {text};
    try {
      list = formats::parse_json(text);
    } catch (const formats::ParseError& error) {
      throw Error(ErrorCode::kInvalidArgument,
                  shown(value) + " is no list of paths: " + error.what(),
                  "write for instance [\"a.png\", \"b.png\"]", error.tag);
    }
  }
  std::vector<std::string> paths;
  if (list.is_array()) {
    for (const json& path : list) {
      if (path.is_string()) paths.push_back(path.get<std::string>());
    }
  }
  if (!list.is_array() || paths.size() != list.size()) {
    throw Error(ErrorCode::kInvalidArgument, shown(value) + " is no path and no list of paths",
                "write for instance \"a.png\"");
  }
  return paths;
}

// "metadata.csv [image]: ", as messages begin.
std::string place_of(const Metadata& metadata, const std::string& column) {
  return files::display_path(metadata.file) + " [" + shown_column(column) + "]: ";
}

void check_path(const std::string& path) {
  const auto fail = [&](const char* what, const char* hint) {
    throw Error(ErrorCode::kInvalidArgument, quote_and_escape(path, kMaxChars) + " " + what, hint);
  };
  if (path.empty()) fail("is an empty path", "name a file");
  if (path.find('\0') != std::string::npos) fail("holds a NUL byte", "name a file");
  if (path.size() >= PATH_MAX) fail("is too long for a path", "name a file");
  if (path.starts_with("http://") || path.starts_with("https://"))
    fail("is a web address", "download the file and name it by its path");
}

}  // namespace

bool is_picture(InputKind kind) {
  return kind == InputKind::kImage || kind == InputKind::kImageList || kind == InputKind::kMask;
}

Columns::Columns(const DatasetOptions& options, std::span<const InputSpec> inputs,
                 const Metadata& metadata, Findings& problems, Findings& odd)
    : base_(options.dataset_base_path), mask_column_(options.mask_column) {
  choose_inputs(options, inputs, problems);
  if (!metadata.records.empty()) check_columns(options, inputs, metadata, problems, odd);
}

void Columns::choose_inputs(const DatasetOptions& options, std::span<const InputSpec> inputs,
                            Findings& problems) {
  std::vector<std::string> known;
  for (const InputSpec& input : inputs) {
    if (input.use == InputUse::kGenerate) continue;
    known.emplace_back(input.name);
    const bool is_extra =
        contains(options.extra_inputs, input.name) || options.texts_of_all.contains(input.name);
    if (!input.required && !is_extra) continue;
    if (input.kind == InputKind::kVideo || input.kind == InputKind::kAudio) {
      problems.add(
          kColumns,
          "input " + quote_and_escape(input.name) + ": " +
              (input.kind == InputKind::kVideo ? "videos" : "sounds") + " cannot be read yet",
          input.required ? "train a family that learns pictures" : "leave it out of --extra_inputs",
          ErrorCode::kUnsupported);
      continue;
    }
    if (input.role == InputRole::kTarget) learnt_ = input.name;
    inputs_.push_back(input);
  }
  for (const InputSpec& input : inputs) {
    if (is_picture(input.kind) || input.kind == InputKind::kVideo ||
        input.kind == InputKind::kAudio || !contains(options.data_file_keys, input.name))
      continue;
    problems.add(kColumns,
                 "--data_file_keys: " + quote_and_escape(input.name) +
                     " is read as it stands in the row, it is no path of a file",
                 "leave it out");
  }
  for (const std::string& name : options.extra_inputs) {
    if (contains(known, name)) continue;
    const std::string nearest = report::nearest_name(name, known);
    problems.add(kColumns,
                 "--extra_inputs: " + quote_and_escape(name) +
                     " is no input that this family is trained with",
                 nearest.empty() ? "known are " + report::list_names(known)
                                 : "did you mean " + nearest + "?");
  }
  if (learnt_.empty() && problems.count() == 0) {
    problems.add(kColumns, "the family declares no picture to learn",
                 "train a family that learns pictures", ErrorCode::kUnsupported);
  }
}

bool Columns::reads(std::string_view column) const {
  return std::any_of(inputs_.begin(), inputs_.end(),
                     [&](const InputSpec& input) { return input.name == column; });
}

// Columns of `unknown` that stand for a missing one are taken out of it.
void Columns::find_missing(const Metadata& metadata, std::vector<std::string>& unknown,
                           Findings& problems) {
  for (const InputSpec& input : inputs_) {
    const std::string name(input.name);
    if (contains(metadata.columns, name)) continue;
    absent_.insert(name);
    const std::string nearest = report::nearest_name(name, unknown);
    problems.add(kColumns, place_of(metadata, name) + "there is no such column",
                 nearest.empty() ? "the file has " + report::list_names(metadata.columns, 8)
                                 : "rename column " + quote_and_escape(nearest) + " to " + name);
    std::erase(unknown, nearest);
  }
  if (!contains(metadata.columns, mask_column_) && mask_column_ != DatasetOptions().mask_column &&
      !mask_column_.empty()) {
    problems.add(kColumns, "--mask_column: there is no column " + quote_and_escape(mask_column_),
                 "the file has " + report::list_names(metadata.columns, 8));
  }
}

void Columns::check_columns(const DatasetOptions& options, std::span<const InputSpec> inputs,
                            const Metadata& metadata, Findings& problems, Findings& odd) {
  std::vector<std::string> known = {mask_column_}, wanted = known, unknown;
  for (const InputSpec& input : inputs) {
    known.emplace_back(input.name);
    if (input.use != InputUse::kGenerate) wanted.emplace_back(input.name);
  }
  for (const std::string& column : metadata.columns) {
    if (!contains(known, column)) unknown.push_back(column);
  }
  find_missing(metadata, unknown, problems);
  for (const std::string& name : wanted) {
    if (name == mask_column_ || reads(name) || !contains(metadata.columns, name)) continue;
    odd.add(kColumns, place_of(metadata, name) + "the column is not used",
            "add it to --extra_inputs to train with it");
  }
  for (const std::string& column : unknown) {
    const std::string nearest = report::nearest_name(column, wanted);
    if (!nearest.empty() && !contains(metadata.columns, nearest)) {
      odd.add(kColumns, place_of(metadata, column) + "the column is not known and not used",
              "did you mean " + nearest + "?");
    } else if (contains(options.data_file_keys, column)) {
      odd.add(
          kColumns,
          place_of(metadata, column) + "this family reads no such files, the column is not used",
          "leave it out of --data_file_keys");
    }
  }
}

std::optional<Item> Columns::read(const Record& record, Findings& problems, Findings& odd) const {
  Item item;
  item.place = record.place;
  bool is_good = true;
  for (const InputSpec& input : inputs_) {
    if (absent_.contains(input.name)) {
      is_good = false;
      continue;
    }
    const std::string place = record.place + " [" + std::string(input.name) + "]";
    const auto value = record.values.find(input.name);
    if (value == record.values.end()) {
      problems.add(kMissingValues, place + ": nothing is given",
                   input.kind == InputKind::kText
                       ? "write the text, or a space for none"
                       : "every row needs one; write it or take the row out");
      is_good = false;
      continue;
    }
    is_good &= read_value(input, *value, place, item, problems, odd);
  }
  for (const auto& [column, value] : record.values.items()) {
    if (reads(column)) continue;
    if (column == mask_column_) {
      is_good &= read_files(column, value, /*takes_list=*/false, record.place + " [" + column + "]",
                            item, problems);
    } else {
      item.values.emplace(column, value);
    }
  }
  return is_good ? std::optional(std::move(item)) : std::nullopt;
}

bool Columns::read_value(const InputSpec& input, const json& value, const std::string& place,
                         Item& item, Findings& problems, Findings& odd) const {
  const std::string name(input.name);
  if (is_picture(input.kind))
    return read_files(name, value, input.kind == InputKind::kImageList, place, item, problems);
  std::optional<json> read;
  const char* wanted = "text";
  const char* hint = "put it in double quotes";
  if (input.kind == InputKind::kInteger) {
    read = read_integer(value);
    wanted = "whole number";
    hint = "write for instance 4";
  } else if (input.kind == InputKind::kReal) {
    read = read_real(value);
    wanted = "number";
    hint = "write for instance 0.5";
  } else if (input.kind == InputKind::kFlag) {
    read = read_flag(value);
    wanted = "truth value";
    hint = "write true or false";
  } else if (value.is_string()) {
    read = value;
    if (is_blank(value.get_ref<const std::string&>()))
      odd.add("empty texts", place + ": the text is empty", "write one if it was forgotten");
  }
  if (!read) {
    problems.add(kWrongValues, place + ": " + shown(value) + " is no " + wanted, hint);
    return false;
  }
  item.values.emplace(name, std::move(*read));
  return true;
}

bool Columns::read_files(const std::string& column, const json& value, bool takes_list,
                         const std::string& place, Item& item, Findings& problems) const {
  try {
    std::vector<std::string> paths = read_list(value);
    if (paths.empty() || (!takes_list && paths.size() != 1)) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::to_string(paths.size()) + " files are given, " +
                      (takes_list ? "at least one" : "one") + " is expected",
                  takes_list ? "name one or more" : "give each file a row of its own");
    }
    for (std::string& path : paths) {
      check_path(path);
      path = (std::filesystem::path(base_) / path).lexically_normal().string();
    }
    item.files.emplace(column, std::move(paths));
    return true;
  } catch (const Error& error) {
    problems.add(kWrongValues, error.at(place));
    return false;
  }
}

}  // namespace atelier::data
