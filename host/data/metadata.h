// What a dataset says of itself: rows of a csv, json or jsonl file, or images with captions
// beside them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "host/data/findings.h"

namespace atelier::data {

// One row. Cells of a csv are texts, and an empty cell is absent; json keeps its types, and null is
// absent.
struct Record {
  uint64_t line = 0;  // csv and jsonl: of the file, from 1; json: of the list, from 1; folder: 0
  std::string place;  // names the row in messages: "metadata.csv:3", "data/a.png"
  std::string target_column =
      {};  // what the file calls the target input; empty: as the family does
  nlohmann::json values = nlohmann::json::object();
};

struct Metadata {
  std::string file;                  // or folder
  std::vector<std::string> columns;  // of all rows, in order of appearance
  std::set<std::string> nulls;       // names that a row of JSON gives no value
  std::vector<Record> records;
};

// What is more than this is a mistake: a quote that is not closed, or another kind of file. A row's
// bytes are those of its texts and their names, or of its caption file.
inline constexpr uint64_t kMaxRowBytes = uint64_t{1} << 20;
inline constexpr size_t kMaxColumns = 1000;

// Reads ".csv", ".json" (one list of objects) or ".jsonl" (one object a line), UTF-8 with or
// without a byte order mark; another ending is told by its content. Every malformed row is found,
// with its line; more than kMaxColumns end the reading. Throws Error{kNotFound} or {kEnvironment}
// when the file cannot be read.
Metadata read_metadata(const std::string& path, Findings& problems);

// One row for each image below `folder`, in the order of their paths: "image" is the image,
// "prompt" the text of the file of the same name that ends in `caption_extension` (".txt"), "mask"
// the file "NAME-masklabel.png" where there is one. An image without caption is a problem.
// `with_clips`: so is each video. `left_out`: a folder, relative to `folder`, whose files are no
// rows; empty: there is none.
Metadata read_caption_folder(const std::string& folder, const std::string& caption_extension,
                             bool with_clips, Findings& problems, const std::string& left_out = {});

// A column's name as messages have it: in quotes where it is no plain one.
std::string shown_column(const std::string& name);

// The text without its byte order mark. Throws Error naming `path`, the line and how to convert
// when it is not UTF-8 or when its lines end in a carriage return alone.
std::string_view checked_utf8(std::string_view text, const std::string& path);

}  // namespace atelier::data
