#include "host/model/config_check.h"

#include <algorithm>
#include <filesystem>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "host/files/config_json.h"
#include "host/files/file_reader.h"

namespace atelier::model {

namespace {

std::string list_values(const std::vector<ConfigValue>& values) {
  std::string text;
  for (const ConfigValue& value : values) text += (text.empty() ? "" : " or ") + to_text(value);
  return text;
}

// What is wrong with one field; nullopt: nothing.
std::optional<Error> problem_of(const ConfigFields& fields, const TensorIndex::Config& config,
                                const std::string& name, const ConfigValue& value,
                                const std::string& prefix) {
  const std::string place = "config field " + formats::quote_and_escape(name);
  const ConfigField* row = fields.find(prefix + name);
  if (row == nullptr)
    return Error(ErrorCode::kUnsupported, place + " is not known",
                 "take it out of the file if it does not change what the model computes",
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

// `prefix`: of the fields' names in the table.
void check_config(const ConfigFields& fields, const TensorIndex::Config& config,
                  const std::string& prefix = {}) {
  std::optional<Error> first;
  std::string message;
  for (const auto& [name, value] : config) {
    const std::optional<Error> problem = problem_of(fields, config, name, value, prefix);
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

namespace {

// A component of a model_index.json: ["diffusers", "AutoencoderKLWan"], or [null, null].
bool is_component(const ConfigValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return std::holds_alternative<std::vector<std::string>>(value) ||
         (text != nullptr && text->starts_with('['));
}

}  // namespace

std::vector<FolderFile> folder_files(const files::Checkpoint& component) {
  namespace fs = std::filesystem;
  constexpr std::pair<const char*, const char*> kFiles[] = {
      {"scheduler/scheduler_config.json", "scheduler."},
      {"model_index.json", "model_index."},
      {"image_processor/preprocessor_config.json", "image_processor."}};
  std::vector<FolderFile> found;
  const fs::path folder = fs::absolute(component.folder()).lexically_normal().parent_path();
  for (const auto& [name, prefix] : kFiles) {
    const std::string path = (folder / name).string();
    std::error_code failure;
    if (!fs::is_regular_file(path, failure)) continue;
    FolderFile file = {path, prefix, {}};
    try {
      file.fields = files::parse_config(files::read_text_file(path));
    } catch (const formats::ParseError& error) {
      throw files::at_file(path, error, ErrorCode::kDataLoss);
    } catch (const Error& error) {
      throw error.at(files::display_path(path));
    }
    if (file.prefix == "model_index.")
      std::erase_if(file.fields, [](const auto& field) { return is_component(field.second); });
    found.push_back(std::move(file));
  }
  return found;
}

bool has_rows_for(const ConfigFields& fields, const FolderFile& file) {
  return std::ranges::any_of(
      fields.rows(), [&](const ConfigField& row) { return row.name.starts_with(file.prefix); });
}

void check_folder_file(const ConfigFields& fields, const FolderFile& file) {
  try {
    check_config(fields, file.fields, file.prefix);
  } catch (const Error& error) {
    throw Error(error.code(), files::display_path(file.path) + ": " + error.message(),
                "take it out of the file where it does not matter; generate has --schedule, "
                "--flow_shift and --solver",
                error.tag());
  }
}

}  // namespace atelier::model
