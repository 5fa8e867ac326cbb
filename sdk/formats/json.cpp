#include "formats/json.h"

#include <string>
#include <utility>

#include "formats/escape.h"
#include "formats/json_tree.h"

namespace atelier::formats {

using nlohmann::json;

void JsonTreeBuilder::on_null() {
  add(nullptr);
}
void JsonTreeBuilder::on_boolean(bool value) {
  add(value);
}
void JsonTreeBuilder::on_unsigned(uint64_t value) {
  add(value);
}
void JsonTreeBuilder::on_negative(int64_t value) {
  add(value);
}
void JsonTreeBuilder::on_real(double value, const std::string&) {
  add(value);
}
void JsonTreeBuilder::on_string(std::string& value) {
  add(std::move(value));
}
void JsonTreeBuilder::on_start_object() {
  open_.push_back({add(json::object()), {}});
}
void JsonTreeBuilder::on_start_array() {
  open_.push_back({add(json::array()), {}});
}
void JsonTreeBuilder::on_end_object() {
  open_.pop_back();
}
void JsonTreeBuilder::on_end_array() {
  open_.pop_back();
}

void JsonTreeBuilder::on_key(std::string& key) {
  count();
  if (open_.back().value->contains(key)) {
    fail("JSON_DUPLICATE_KEY", "key " + quote_and_escape(key) + " is given twice in one object");
  }
  open_.back().key = std::move(key);
}

void JsonTreeBuilder::count() {
  if (++values_ > limits_.max_values) {
    fail("JSON_TOO_LARGE", "holds more than " + std::to_string(limits_.max_values) + " values");
  }
}

json* JsonTreeBuilder::add(json value) {
  count();
  if (open_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  json& parent = *open_.back().value;
  if (parent.is_array()) {
    parent.push_back(std::move(value));
    return &parent.back();
  }
  json& slot = parent[std::move(open_.back().key)];
  slot = std::move(value);
  return &slot;
}

json parse_json(std::string_view text, const JsonLimits& limits) {
  JsonRules rules;
  rules.max_depth = limits.max_depth;
  JsonTreeBuilder builder(limits);
  read_json(text, rules, builder);
  return builder.take();
}

std::vector<JsonLine> parse_jsonl(std::string_view text, const JsonLimits& limits,
                                  std::vector<ParseError>* errors) {
  std::vector<JsonLine> rows;
  uint64_t line = 0;
  for (size_t start = 0; start < text.size();) {
    ++line;
    size_t end = text.find('\n', start);
    if (end == std::string_view::npos) end = text.size();
    std::string_view row = text.substr(start, end - start);
    if (!row.empty() && row.back() == '\r') row.remove_suffix(1);
    if (row.find_first_not_of(" \t") != std::string_view::npos) {
      try {
        rows.push_back({line, parse_json(row, limits)});
      } catch (const ParseError& error) {
        ParseError placed = error;
        placed.byte = error.byte.value_or(0) + start;
        placed.line = line;
        if (errors == nullptr) throw placed;
        errors->push_back(std::move(placed));
      }
    }
    start = end + 1;
  }
  return rows;
}

}  // namespace atelier::formats
