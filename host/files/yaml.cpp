#include "host/files/yaml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <yaml-cpp/yaml.h>

#include "formats/escape.h"
#include "formats/parse_error.h"
#include "formats/utf8.h"

namespace atelier::files {

using formats::ParseError;
using nlohmann::json;

namespace {

constexpr size_t kMostBytes = 64 << 10;
constexpr int kMostValues = 10'000, kMostLevels = 32;

ParseError too_large() {
  return {"YAML_TOO_LARGE", "more than settings of a launcher have"};
}

bool is_one_of(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

template <typename T>
bool read_number(const std::string& text, T& value) {
  const char* const begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [rest, code] = std::from_chars(begin, text.data() + text.size(), value);
  return code == std::errc() && rest == text.data() + text.size() && rest != begin;
}

json plain_scalar(const std::string& text) {
  if (is_one_of(text, {"", "~", "null", "Null", "NULL"})) return nullptr;
  if (is_one_of(text, {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}))
    return false;
  int64_t whole = 0;
  double real = 0;
  if (read_number(text, whole)) return whole;
  if (read_number(text, real) && std::isfinite(real)) return real;
  return text;
}

// Escapes and other encodings can make bytes of a text that are none.
const std::string& text_of(const YAML::Node& node) {
  if (formats::find_invalid_utf8(node.Scalar()) != std::string_view::npos)
    throw ParseError("YAML_SYNTAX", "no UTF-8", {}, {},
                     static_cast<uint64_t>(node.Mark().line + 1));
  return node.Scalar();
}

class Converter {
 public:
  json convert(const YAML::Node& node, int level) {
    if (++num_values_ > kMostValues || level > kMostLevels) throw too_large();
    switch (node.Type()) {
      case YAML::NodeType::Scalar:
        return node.Tag() == "?" ? plain_scalar(text_of(node)) : json(text_of(node));
      case YAML::NodeType::Sequence: {
        json list = json::array();
        for (const YAML::Node& item : node) list.push_back(convert(item, level + 1));
        return list;
      }
      case YAML::NodeType::Map:
        return convert_map(node, level);
      default:
        return nullptr;
    }
  }

 private:
  json convert_map(const YAML::Node& node, int level) {
    json map = json::object();
    for (const auto& entry : node) {
      const auto line = static_cast<uint64_t>(entry.first.Mark().line + 1);
      if (!entry.first.IsScalar())
        throw ParseError("YAML_SYNTAX", "a key that is no name", {}, {}, line);
      const std::string& key = text_of(entry.first);
      if (map.contains(key))
        throw ParseError("YAML_DUPLICATE_KEY",
                         "key " + formats::quote_and_escape(key) + " is given twice", {}, {}, line);
      map[key] = convert(entry.second, level + 1);
    }
    return map;
  }

  int num_values_ = 0;
};

}  // namespace

json parse_yaml(std::string_view text) {
  if (text.size() > kMostBytes) throw too_large();
  try {
    return Converter().convert(YAML::Load(std::string(text)), 1);
  } catch (const YAML::Exception& error) {
    throw ParseError("YAML_SYNTAX", formats::quote_and_escape(error.msg), {}, {},
                     static_cast<uint64_t>(std::max(error.mark.line, 0) + 1));
  }
}

}  // namespace atelier::files
