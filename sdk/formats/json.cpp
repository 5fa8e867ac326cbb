#include "formats/json.h"

#include <string>
#include <utility>

#include "formats/escape.h"
#include "formats/json_reader.h"

namespace atelier::formats {
namespace {

using nlohmann::json;

class TreeBuilder : public JsonHandler {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  void on_null() override { add(nullptr); }
  void on_boolean(bool value) override { add(value); }
  void on_unsigned(uint64_t value) override { add(value); }
  void on_negative(int64_t value) override { add(value); }
  void on_real(double value, const std::string&) override { add(value); }
  void on_string(std::string& value) override { add(std::move(value)); }
  void on_start_object() override { open_.push_back({add(json::object()), {}}); }
  void on_start_array() override { open_.push_back({add(json::array()), {}}); }
  void on_end_object() override { open_.pop_back(); }
  void on_end_array() override { open_.pop_back(); }

  void on_key(std::string& key) override {
    count();
    if (open_.back().value->contains(key)) {
      fail("JSON_DUPLICATE_KEY", "key " + quote_and_escape(key) + " is given twice in one object");
    }
    open_.back().key = std::move(key);
  }

  json take() { return std::move(root_); }

 private:
  struct Open {
    json* value;
    std::string key;
  };

  void count() {
    if (++values_ > limits_.max_values) {
      fail("JSON_TOO_LARGE", "holds more than " + std::to_string(limits_.max_values) + " values");
    }
  }

  json* add(json value) {
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

  const JsonLimits& limits_;
  uint64_t values_ = 0;
  json root_;
  std::vector<Open> open_;
};

}  // namespace

json parse_json(std::string_view text, const JsonLimits& limits) {
  JsonRules rules;
  rules.max_depth = limits.max_depth;
  TreeBuilder builder(limits);
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
