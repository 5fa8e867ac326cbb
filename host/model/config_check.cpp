#include "host/model/config_check.h"

#include <algorithm>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"

namespace atelier::model {

namespace {

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

std::optional<Detection> detect_with_config(const ModelFamily& family,
                                            const TensorIndex& checkpoint, const DetectHint& hint) {
  std::optional<Detection> part = family.detect(checkpoint, hint);
  if (part) check_config(family.config_fields(*part), checkpoint.config());
  return part;
}

}  // namespace atelier::model
