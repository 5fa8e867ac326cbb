#include "host/files/config_json.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"

namespace atelier::files {

namespace {

template <class T>
std::vector<T> items_of(const nlohmann::json& array) {
  std::vector<T> items;
  for (const nlohmann::json& item : array) items.push_back(item.get<T>());
  return items;
}

ConfigValue config_value(const nlohmann::json& value) {
  const auto all = [&](auto is) { return std::all_of(value.begin(), value.end(), is); };
  switch (value.type()) {
    case nlohmann::json::value_t::null:
      return nullptr;
    case nlohmann::json::value_t::boolean:
      return value.get<bool>();
    case nlohmann::json::value_t::number_integer:
      return value.get<int64_t>();
    case nlohmann::json::value_t::number_unsigned:
      if (value.get<uint64_t>() > INT64_MAX) return value.get<double>();
      return value.get<int64_t>();
    case nlohmann::json::value_t::number_float:
      return value.get<double>();
    case nlohmann::json::value_t::string:
      return value.get<std::string>();
    default:
      break;
  }
  if (all([](const auto& item) { return item.is_number(); })) return items_of<double>(value);
  if (all([](const auto& item) { return item.is_string(); })) return items_of<std::string>(value);
  if (all([](const auto& item) { return item.is_boolean(); })) {
    std::vector<double> flags;
    for (const bool flag : items_of<bool>(value)) flags.push_back(flag ? 1 : 0);
    return flags;
  }
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void flatten(const std::string& prefix, const nlohmann::json& object, TensorIndex::Config& config) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    if (value.is_object()) {
      flatten(name + ".", value, config);
    } else if (!config.emplace(name, config_value(value)).second) {
      throw Error(ErrorCode::kInvalidArgument,
                  "field " + formats::quote_and_escape(name) + " is there twice", "check the file",
                  "CONFIG_FORM");
    }
  }
}

}  // namespace

TensorIndex::Config parse_config(std::string_view json) {
  const nlohmann::json tree = formats::parse_json(json);
  if (!tree.is_object())
    throw Error(ErrorCode::kInvalidArgument, "is no JSON object", "check the file", "CONFIG_FORM");
  TensorIndex::Config config;
  flatten({}, tree, config);
  return config;
}

}  // namespace atelier::files
