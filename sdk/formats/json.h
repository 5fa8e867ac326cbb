// Strict JSON and JSON lines as trees.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

struct JsonLimits {
  // Nesting of arrays and objects; the outermost counts as 1.
  int max_depth = 32;
  // Values and keys in one text. A tree takes up to a hundred bytes for each.
  uint64_t max_values = 4'000'000;
};

// Parses one JSON text. Unlike nlohmann::json::parse it refuses a key that an object holds twice
// (compared after unescaping), deep nesting, NUL bytes and a byte order mark. Throws ParseError
// (JSON_SYNTAX, JSON_UTF8, JSON_DEPTH, JSON_DUPLICATE_KEY, JSON_TOO_LARGE) with byte and line.
nlohmann::json parse_json(std::string_view text, const JsonLimits& limits = {});

struct JsonLine {
  uint64_t line;  // counted from 1
  nlohmann::json value;
};

// Parses one JSON text a line; lines end in \n or \r\n, and blank ones are skipped.
//
// Throws the first line's ParseError; with `errors`, bad lines go there instead and the rest is
// returned. Bytes and lines in errors count from the start of `text`. The limits hold for each
// line.
std::vector<JsonLine> parse_jsonl(std::string_view text, const JsonLimits& limits = {},
                                  std::vector<ParseError>* errors = nullptr);

}  // namespace atelier::formats
