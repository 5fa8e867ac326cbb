// Comma-separated values, as RFC 4180 and spreadsheets write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

struct CsvRow {
  uint64_t line = 1;  // on which it begins, counted from 1
  std::vector<std::string> fields;
};

// Parses a whole file. Fields in double quotes may hold commas, line ends and doubled quotes; lines
// end in \n or \r\n; blank lines are skipped; a UTF-8 byte order mark at the start is dropped.
// Throws ParseError with the line: CSV_QUOTE, CSV_UTF8, CSV_TOO_LARGE (more than 2^24 fields).
std::vector<CsvRow> parse_csv(std::string_view text);

}  // namespace atelier::formats
