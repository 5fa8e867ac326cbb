// The config.json beside a checkpoint, and what a model's folder says beside it, held against the
// family's table.
#pragma once

#include <optional>

#include "atelier/model_family.h"

#include "host/files/checkpoint.h"

namespace atelier::model {

// As ModelFamily::detect(), and every field of the config is one that the family's table of the
// component allows. Throws one Error with tag CONFIG_FIELD that names all that are not: unknown
// ones, those with a value that is not computed, and those that contradict the tensors.
std::optional<Detection> detect_with_config(const ModelFamily& family,
                                            const TensorIndex& checkpoint, const DetectHint& hint);

// The folder above a component's own, absolute: a model's folder where it has such files.
std::string model_folder_of(const files::Checkpoint& component);

// A file beside the folder of a component, in a model's folder as diffusers saves it:
// scheduler/scheduler_config.json, model_index.json, image_processor/preprocessor_config.json, or
// what processor/ says of images: preprocessor_config.json and processor_config.json.
struct FolderFile {
  std::string path;
  std::string prefix;  // of its fields in a family's table: "scheduler."
  TensorIndex::Config fields;
};

// Files that are there. What model_index.json lists as components is left out of its fields. Throws
// Error{kDataLoss} for what is no JSON object.
std::vector<FolderFile> folder_files(const std::string& model_folder);
bool has_folder_files(const std::string& model_folder);

// Whether a component's table has rows for a file.
bool has_rows_for(const ConfigFields& fields, const FolderFile& file);

// Holds a file against such a table. Throws as detect_with_config(), naming the file.
void check_folder_file(const ConfigFields& fields, const FolderFile& file);

}  // namespace atelier::model
