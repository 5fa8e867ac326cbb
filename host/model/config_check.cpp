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

bool is_one_of(const std::vector<ConfigValue>& values, const ConfigValue& value) {
  return std::ranges::any_of(values, [&](const ConfigValue& one) { return is_same(one, value); });
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
  if (is_one_of(row->values, value)) return std::nullopt;
  const std::string said = place + " is " + to_text(value) + ", and ";
  if (row->use == Use::kTold)
    return Error(ErrorCode::kInvalidArgument, said + "the tensors say " + list_values(row->values),
                 "pass the config.json that belongs to the checkpoint", "CONFIG_FIELD");
  return Error(ErrorCode::kUnsupported, said + "only " + list_values(row->values) + " is computed",
               "only models of that form can be loaded", "CONFIG_FIELD");
}

// A field of `row` that the class of its config needs and the config does not say; nullopt: none.
std::optional<Error> missing_of(const ConfigField& row, const TensorIndex::Config& config,
                                const std::string& prefix) {
  if (row.needed_by.empty() || !row.name.starts_with(prefix)) return std::nullopt;
  const std::string name = row.name.substr(prefix.size());
  const auto kind = config.find(name.substr(0, name.rfind('.') + 1) + "_class_name");
  if (kind == config.end() || !is_one_of(row.needed_by, kind->second) || config.contains(name))
    return std::nullopt;
  return Error(ErrorCode::kUnsupported,
               "config field " + formats::quote_and_escape(name) + " is missing, by which " +
                   to_text(kind->second) + " means another value than " + list_values(row.values),
               "write " + formats::quote_and_escape(name) + ": " + to_text(row.values.front()),
               "CONFIG_FIELD");
}

// `prefix`: of the fields' names in the table.
void check_config(const ConfigFields& fields, const TensorIndex::Config& config,
                  const std::string& prefix = {}) {
  std::optional<Error> first;
  std::string message;
  const auto add = [&](const std::optional<Error>& problem) {
    if (!problem) return;
    message += (first ? "; " : "") + problem->message();
    if (!first) first = problem;
  };
  for (const auto& [name, value] : config) add(problem_of(fields, config, name, value, prefix));
  for (const ConfigField& row : fields.rows()) add(missing_of(row, config, prefix));
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

namespace fs = std::filesystem;

// Files of a model's folder, and what their fields begin with in a family's table.
constexpr std::pair<const char*, const char*> kFolderFiles[] = {
    {"scheduler/scheduler_config.json", "scheduler."},
    {"model_index.json", "model_index."},
    {"image_processor/preprocessor_config.json", "image_processor."},
    // One file and both in one, as versions of transformers write them.
    {"processor/preprocessor_config.json", "processor.image_processor."},
    {"processor/processor_config.json", "processor."}};

bool is_in(const std::string& folder, const char* file) {
  std::error_code failure;
  return fs::is_regular_file(fs::path(folder) / file, failure);
}

// A component of a model_index.json: ["diffusers", "AutoencoderKLWan"], or [null, null].
bool is_component(const ConfigValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return std::holds_alternative<std::vector<std::string>>(value) ||
         (text != nullptr && text->starts_with('['));
}

}  // namespace

std::string model_folder_of(const files::Checkpoint& component) {
  return fs::absolute(component.folder()).lexically_normal().parent_path().string();
}

bool has_folder_files(const std::string& model_folder) {
  return std::ranges::any_of(kFolderFiles,
                             [&](const auto& file) { return is_in(model_folder, file.first); });
}

std::vector<FolderFile> folder_files(const std::string& model_folder) {
  std::vector<FolderFile> found;
  for (const auto& [name, prefix] : kFolderFiles) {
    if (!is_in(model_folder, name)) continue;
    const std::string path = (fs::path(model_folder) / name).string();
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
    const bool is_of_sampling = file.prefix == "scheduler.";
    throw Error(error.code(), files::display_path(file.path) + ": " + error.message(),
                error.hint() +
                    (is_of_sampling ? "; generate has --schedule, --flow_shift and --solver" : ""),
                error.tag());
  }
}

}  // namespace atelier::model
