// The commands below "atelier lora".
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "host/flags/flags.h"
#include "host/lora/lora_file.h"
#include "host/lora/lora_writer.h"
#include "host/model/model_loader.h"
#include "host/plugins/plugin_loader.h"
#include "host/progress/progress.h"

namespace atelier::cli {

flags::CommandSpec lora_info_command();
flags::CommandSpec lora_convert_command();
flags::CommandSpec lora_merge_command();
flags::CommandSpec lora_extract_command();

int run_lora_info(std::span<const std::string> arguments);
int run_lora_convert(std::span<const std::string> arguments);
int run_lora_merge(std::span<const std::string> arguments);
int run_lora_extract(std::span<const std::string> arguments);

// --plugin, --plugin_path, --model_hints and where models are found; none of them required.
std::vector<flags::FlagSpec> lora_model_flags();
bool names_a_model(const flags::ParsedFlags& flags);
// What open_headers gives for the model that the flags name; null when they name none. Without
// --plugin its files say its family. Throws what choose_family tells and LoadedModel::open throws,
// and Error{kInvalidArgument} for --plugin alone.
std::unique_ptr<model::LoadedModel> open_named_model(const flags::ParsedFlags& flags);
// A model without any weights: the family's denoiser and whatever else is found. `lenders`: see
// LoadOptions.
std::unique_ptr<model::LoadedModel> open_headers(const ModelFamily& family,
                                                 const std::string& model_paths,
                                                 const std::string& model_ids,
                                                 const nlohmann::json& hints,
                                                 std::vector<model::LoadedPart> lenders = {});

// --lora_format and --dtype of a LoRA that is written.
flags::FlagSpec lora_format_flag(const std::optional<std::string>& preset);
flags::FlagSpec lora_dtype_flag(std::string preset, std::string help);
// nullopt for "auto".
std::optional<at::ScalarType> lora_dtype(const flags::ParsedFlags& flags);

// Warns of the file's tensors whose names say nothing: what is made of it lacks them. Of a format:
// that few programs read it.
void warn_of_unknown(progress::Progress& progress, const lora::LoraFile& file);
void warn_of_format(progress::Progress& progress, lora::Format format);

// "720 layers".
std::string count_text(size_t count, const char* what);

}  // namespace atelier::cli
