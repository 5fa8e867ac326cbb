#include "formats/csv.h"

#include <algorithm>

#include "formats/git_lfs.h"
#include "formats/utf8.h"

namespace atelier::formats {

namespace {

constexpr uint64_t kMaxFields = uint64_t{1} << 24;

}  // namespace

std::vector<CsvRow> parse_csv(std::string_view text) {
  if (const auto pointer = find_git_lfs_pointer(text, "CSV_")) throw *pointer;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    const auto line = static_cast<uint64_t>(
        std::count(text.begin(), text.begin() + static_cast<int64_t>(bad), '\n'));
    throw ParseError("CSV_UTF8", "is not UTF-8", "save the table as UTF-8", {}, line + 1);
  }
  std::vector<CsvRow> rows;
  uint64_t line = 1, num_fields = 0;
  size_t at = 0;
  while (at < text.size()) {
    CsvRow row;
    row.line = line;
    bool is_quoted_row = false, row_ends = false;
    while (!row_ends) {
      std::string field;
      if (at < text.size() && text[at] == '"') {
        is_quoted_row = true;
        const uint64_t opened = line;
        ++at;
        while (true) {
          if (at >= text.size())
            throw ParseError("CSV_QUOTE", "a quote that opens here is not closed", "close it", {},
                             opened);
          const char c = text[at++];
          if (c == '"') {
            if (at >= text.size() || text[at] != '"') break;
            ++at;
          } else if (c == '\n') {
            ++line;
          }
          field += c;
        }
        if (at < text.size() && text[at] != ',' && text[at] != '\n' && text[at] != '\r')
          throw ParseError("CSV_QUOTE", "text stands after a closing quote",
                           "double the quotes inside a field", {}, line);
      } else {
        const size_t end = std::min(text.find_first_of(",\n\r", at), text.size());
        field.assign(text.substr(at, end - at));
        at = end;
      }
      row.fields.push_back(std::move(field));
      if (++num_fields > kMaxFields)
        throw ParseError("CSV_TOO_LARGE", "has more than 2^24 fields", "split the table", {}, line);
      if (at < text.size() && text[at] == ',') {
        ++at;
        continue;
      }
      if (at < text.size() && text[at] == '\r') ++at;
      if (at < text.size() && text[at] == '\n') ++at;
      ++line;
      row_ends = true;
    }
    if (row.fields.size() > 1 || !row.fields.front().empty() || is_quoted_row)
      rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace atelier::formats
