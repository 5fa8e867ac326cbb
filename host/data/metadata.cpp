#include "host/data/metadata.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "atelier/error.h"

#include "formats/csv.h"
#include "formats/escape.h"
#include "formats/json.h"
#include "formats/utf8.h"
#include "host/files/file_reader.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::data {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxValues = 32'000'000;
constexpr std::string_view kSyntax = "malformed rows";

enum class Form { kCsv, kJson, kJsonLines };

Form form_of(const std::string& path, std::string_view text) {
  std::string ending = std::filesystem::path(path).extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (ending == ".csv") return Form::kCsv;
  if (ending == ".json") return Form::kJson;
  if (ending == ".jsonl") return Form::kJsonLines;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return Form::kCsv;
  return text[first] == '[' ? Form::kJson : text[first] == '{' ? Form::kJsonLines : Form::kCsv;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::string kind_of(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_string()) return "a text";
  if (value.is_object()) return "an object";
  return value.is_null() ? "null" : value.is_boolean() ? "a truth value" : "a number";
}

// The bytes of the texts in it, names among them.
uint64_t bytes_of(const json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().size();
  uint64_t bytes = 0;
  if (!value.is_structured()) return bytes;
  for (const auto& [name, part] : value.items()) {
    bytes += (value.is_object() ? name.size() : 0) + bytes_of(part);
  }
  return bytes;
}

// Adds rows to `metadata` and keeps its columns.
class Collector {
 public:
  Collector(Metadata& metadata, Findings& problems) : metadata_(metadata), problems_(problems) {}

  // `place`: where it stands, for the error of one too many.
  void add_column(const std::string& name, const std::string& place) {
    if (!seen_.insert(name).second) return;
    metadata_.columns.push_back(name);
    if (seen_.size() <= kMaxColumns) return;
    throw Error(ErrorCode::kInvalidArgument,
                place + ": more than " + std::to_string(kMaxColumns) + " columns",
                "each row is one image, and each column one of its values");
  }

  void add(Record record) {
    if (!check_size(record)) return;
    for (auto value = record.values.begin(); value != record.values.end();) {
      if (value->is_null()) {
        metadata_.nulls.insert(value.key());
        value = record.values.erase(value);
      } else {
        add_column(value.key(), record.place);
        ++value;
      }
    }
    metadata_.records.push_back(std::move(record));
  }

 private:
  // Problems name the longest value.
  bool check_size(const Record& record) {
    uint64_t bytes = 0, most = 0;
    std::string column;
    for (const auto& [name, value] : record.values.items()) {
      const uint64_t taken = name.size() + bytes_of(value);
      bytes += taken;
      if (taken <= most) continue;
      most = taken;
      column = name;
    }
    if (bytes <= kMaxRowBytes) return true;
    problems_.set_row(record.line);
    problems_.add(kSyntax,
                  record.place + " [" + shown_column(column) + "]: " + report::bytes_text(bytes) +
                      " of text, a row has at most " + report::bytes_text(kMaxRowBytes),
                  "shorten it; is a quote before it not closed?");
    return false;
  }

  Metadata& metadata_;
  Findings& problems_;
  std::set<std::string, std::less<>> seen_;
};

// The columns of a csv; an empty name (pandas' index) stands for a column that is left out.
std::vector<std::string> read_header(const formats::CsvRow& row, const std::string& place) {
  if (row.fields.size() == 1) {
    for (const auto& [separator, name] : {std::pair{';', "semicolons"}, {'\t', "tabs"}}) {
      if (row.fields.front().find(separator) == std::string::npos) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  place + ": columns are separated by " + name + ", commas are expected",
                  "save the table with commas", "CSV_SEPARATOR");
    }
  }
  std::vector<std::string> columns;
  std::set<std::string> seen;
  for (const std::string& field : row.fields) {
    std::string name(trimmed(field));
    if (!name.empty() && !seen.insert(name).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  place + ": column " + formats::quote_and_escape(name) + " is given twice",
                  "rename one of them");
    }
    columns.push_back(std::move(name));
  }
  return columns;
}

void read_csv(std::string_view text, Metadata& metadata, Findings& problems) {
  const std::string file = files::display_path(metadata.file);
  const std::vector<formats::CsvRow> rows = formats::parse_csv(text);
  if (rows.empty()) return;
  const std::string header = file + ":" + std::to_string(rows.front().line);
  const std::vector<std::string> columns = read_header(rows.front(), header);
  Collector collector(metadata, problems);
  for (const std::string& name : columns) {
    if (!name.empty()) collector.add_column(name, header);
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    const auto& [line, fields] = rows[i];
    Record record = {line, file + ":" + std::to_string(line)};
    problems.set_row(line);
    if (fields.size() > columns.size()) {
      problems.add(kSyntax,
                   record.place + ": " + std::to_string(fields.size()) +
                       " fields, the header names " + std::to_string(columns.size()),
                   "put double quotes around fields that hold commas");
      continue;
    }
    for (size_t c = 0; c < fields.size(); ++c) {
      if (!columns[c].empty() && !fields[c].empty()) record.values[columns[c]] = fields[c];
    }
    collector.add(std::move(record));
  }
}

void add_object(Collector& collector, Record record, json value, Findings& problems) {
  if (!value.is_object()) {
    problems.set_row(record.line);
    problems.add(kSyntax, record.place + ": is " + kind_of(value) + ", an object is expected",
                 "write for instance {\"image\": \"a.png\", \"prompt\": \"…\"}");
    return;
  }
  record.values = std::move(value);
  collector.add(std::move(record));
}

void read_json(std::string_view text, Metadata& metadata, Findings& problems) {
  const std::string file = files::display_path(metadata.file);
  json list;
  try {
    list = formats::parse_json(text, {.max_values = kMaxValues});
  } catch (const formats::ParseError& error) {
    const Error placed = files::at_file(metadata.file, error, ErrorCode::kInvalidArgument);
    const bool looks_like_lines = trimmed(text).starts_with('{');
    throw Error(placed.code(), placed.message(),
                looks_like_lines ? "a file with one object a line ends in .jsonl" : placed.hint(),
                placed.tag());
  }
  if (!list.is_array()) {
    throw Error(ErrorCode::kInvalidArgument,
                file + ": is " + kind_of(list) + ", a list of objects is expected",
                "put [ ] around the rows, or write one object a line into a .jsonl file");
  }
  Collector collector(metadata, problems);
  for (size_t i = 0; i < list.size(); ++i) {
    add_object(collector, {i + 1, file + ":row " + std::to_string(i + 1)}, std::move(list[i]),
               problems);
  }
}

void read_json_lines(std::string_view text, Metadata& metadata, Findings& problems) {
  const std::string file = files::display_path(metadata.file);
  std::vector<formats::ParseError> errors;
  std::vector<formats::JsonLine> lines = formats::parse_jsonl(text, {}, &errors);
  for (const formats::ParseError& error : errors) {
    problems.set_row(error.line.value_or(0));
    problems.add(kSyntax, files::at_file(metadata.file, error, ErrorCode::kInvalidArgument));
  }
  Collector collector(metadata, problems);
  for (formats::JsonLine& line : lines) {
    add_object(collector, {line.line, file + ":" + std::to_string(line.line)},
               std::move(line.value), problems);
  }
}

bool looks_like_utf16(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return true;
  return text.size() >= 4 && ((text[0] == '\0' && text[1] != '\0' && text[2] == '\0') ||
                              (text[0] != '\0' && text[1] == '\0' && text[3] == '\0'));
}

Error wrong_encoding(const std::string& place, const std::string& what, const std::string& from) {
  return Error(ErrorCode::kInvalidArgument, place + ": " + what,
               "save it as UTF-8, for instance with iconv -f " + from + " -t UTF-8",
               "TEXT_ENCODING");
}

}  // namespace

std::string shown_column(const std::string& name) {
  std::string shown = formats::quote_and_escape(name);
  return shown.size() == name.size() + 2 ? name : shown;
}

std::string_view checked_utf8(std::string_view text, const std::string& path) {
  const std::string file = files::display_path(path);
  if (looks_like_utf16(text)) throw wrong_encoding(file, "is UTF-16, not UTF-8", "UTF-16");
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const size_t bad = formats::find_invalid_utf8(text); bad != std::string_view::npos) {
    const auto line =
        1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(bad), '\n');
    // One byte alone is a Latin letter; Chinese text has them in pairs.
    const bool is_pair = bad + 1 < text.size() && static_cast<unsigned char>(text[bad + 1]) >= 0x80;
    throw wrong_encoding(file + ":" + std::to_string(line),
                         std::string("is not UTF-8, it looks like ") +
                             (is_pair ? "GB18030 or another encoding" : "Latin-1"),
                         is_pair ? "GB18030" : "LATIN1");
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                file + ":byte " + std::to_string(nul) + ": holds a NUL byte, it is no text",
                "is it the right file?", "TEXT_ENCODING");
  }
  if (text.find('\r') < text.size() - 1 && text.find('\n') == std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument, file + ": lines end in a carriage return alone",
                "convert it, for instance with tr '\\r' '\\n'", "TEXT_ENCODING");
  }
  return text;
}

Metadata read_metadata(const std::string& path, Findings& problems) {
  const std::string bytes = files::read_text_file(path, kMaxBytes);
  Metadata metadata = {path, {}, {}};
  try {
    const std::string_view text = checked_utf8(bytes, path);
    switch (form_of(path, text)) {
      case Form::kCsv:
        read_csv(text, metadata, problems);
        break;
      case Form::kJson:
        read_json(text, metadata, problems);
        break;
      case Form::kJsonLines:
        read_json_lines(text, metadata, problems);
        break;
    }
  } catch (const formats::ParseError& error) {
    problems.add(kSyntax, files::at_file(path, error, ErrorCode::kInvalidArgument));
    return metadata;
  } catch (const Error& error) {
    problems.add(kSyntax, error);
    metadata.records.clear();
    return metadata;
  }
  problems.set_row(0);
  if (metadata.records.empty() && problems.count() == 0) {
    problems.add(kSyntax, files::display_path(path) + ": holds no rows",
                 "write one row for each image");
  }
  return metadata;
}

}  // namespace atelier::data
