#include "host/checkpoint/config_check.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"

namespace atelier::checkpoint {

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

std::string list_values(const std::vector<ConfigValue>& values) {
  std::string text;
  for (const ConfigValue& value : values) text += (text.empty() ? "" : " or ") + to_text(value);
  return text;
}

// What is wrong with one field; nullopt: nothing.
std::optional<Error> problem_of(const ConfigFields& fields, const TensorIndex::Config& config,
                                const std::string& name, const ConfigValue& value) {
  const std::string place = "config field " + formats::quote_and_escape(name);
  const ConfigField* row = fields.find(name);
  if (row == nullptr)
    return Error(ErrorCode::kUnsupported, place + " is not known",
                 "take it out of config.json if it does not change what the model computes",
                 "CONFIG_FIELD");
  using Use = ConfigField::Use;
  if (row->use != Use::kFixed && row->use != Use::kTold) return std::nullopt;
  if (!row->unless.empty() && has_fields(config, row->unless)) return std::nullopt;
  const bool is_allowed =
      std::any_of(row->values.begin(), row->values.end(),
                  [&](const ConfigValue& allowed) { return is_same(allowed, value); });
  if (is_allowed) return std::nullopt;
  const std::string said = place + " is " + to_text(value) + ", and ";
  if (row->use == Use::kTold)
    return Error(ErrorCode::kInvalidArgument, said + "the tensors say " + list_values(row->values),
                 "pass the config.json that belongs to the checkpoint", "CONFIG_FIELD");
  return Error(ErrorCode::kUnsupported, said + "only " + list_values(row->values) + " is computed",
               "only models of that form can be loaded", "CONFIG_FIELD");
}

void check_config(const ConfigFields& fields, const TensorIndex::Config& config) {
  std::optional<Error> first;
  std::string message;
  for (const auto& [name, value] : config) {
    const std::optional<Error> problem = problem_of(fields, config, name, value);
    if (!problem) continue;
    message += (first ? "; " : "") + problem->message();
    if (!first) first = problem;
  }
  if (first) throw Error(first->code(), message, first->hint(), first->tag());
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

std::optional<Detection> detect_with_config(const ModelFamily& family,
                                            const TensorIndex& checkpoint, const DetectHint& hint) {
  std::optional<Detection> part = family.detect(checkpoint, hint);
  if (part) check_config(family.config_fields(*part), checkpoint.config());
  return part;
}

}  // namespace atelier::checkpoint
