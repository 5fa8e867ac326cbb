// atelier lora: picks the command, and what those commands share.
#include "host/cli/lora.h"

#include <cstdio>
#include <set>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/cli/group.h"
#include "host/files/file_reader.h"
#include "host/model/family_choice.h"
#include "host/model/model_flags.h"
#include "host/report/problems.h"
#include "host/weights/storage.h"

namespace atelier::cli {

namespace {

constexpr Command kLoraCommands[] = {
    {"info", "say what LoRA files add to, and by how much", run_lora_info, false},
    {"convert", "write a LoRA in the spelling of another program", run_lora_convert, false},
    {"merge", "several LoRAs into one, or into a model's weights", run_lora_merge, false},
    {"extract", "make a LoRA of what training changed in a model", run_lora_extract, false},
};

}  // namespace

std::vector<flags::CommandSpec> lora_commands() {
  return {lora_info_command(), lora_convert_command(), lora_merge_command(),
          lora_extract_command()};
}

int run_lora(std::span<const std::string> arguments) {
  return run_group("lora", "Works on LoRA files.", kLoraCommands, "atelier lora info FILE",
                   arguments);
}

std::vector<flags::FlagSpec> lora_model_flags() {
  std::vector<flags::FlagSpec> flags;
  const std::set<std::string_view> unused = {
      "tokenizer_path", "dtype",         "device",  "storage",         "compute",
      "fp8_models",     "quant_options", "offload", "resident_blocks", "prefetch"};
  for (flags::FlagSpec& flag : model::model_flags()) {
    if (unused.contains(flag.name)) continue;
    flag.required = false;
    flags.push_back(std::move(flag));
  }
  return flags;
}

bool names_a_model(const flags::ParsedFlags& flags) {
  return !flags.text("model_paths").empty() || !flags.text("model_id_with_origin_paths").empty();
}

std::unique_ptr<model::LoadedModel> open_named_model(const flags::ParsedFlags& flags) {
  const std::optional<std::string> plugin = flags.find_text("plugin");
  if (!names_a_model(flags)) {
    if (!plugin) return nullptr;
    throw Error(ErrorCode::kInvalidArgument, "--plugin is given without a model",
                "pass its files with --model_paths or --model_id_with_origin_paths");
  }
  const std::string paths = flags.text("model_paths"),
                    ids = flags.text("model_id_with_origin_paths");
  report::Problems problems;
  const plugins::Plugin* const chosen =
      model::choose_family({.plugin = plugin,
                            .plugin_path = flags.text("plugin_path"),
                            .model_paths = paths,
                            .model_id_with_origin_paths = ids},
                           problems);
  problems.throw_if_any();
  return open_headers(*chosen->family, paths, ids, flags.json("model_hints"));
}

std::unique_ptr<model::LoadedModel> open_headers(const ModelFamily& family,
                                                 const std::string& model_paths,
                                                 const std::string& model_ids,
                                                 const nlohmann::json& hints,
                                                 std::vector<model::LoadedPart> lenders) {
  model::LoadOptions request;
  request.lenders = std::move(lenders);
  request.model_paths = model_paths;
  request.model_id_with_origin_paths = model_ids;
  request.hints = model::parse_hints(hints);
  request.dtype = "float32";
  request.device = "cpu";
  request.one_denoiser_is_enough = true;
  for (const ComponentSpec& spec : family.components()) {
    if (spec.role == Role::kDenoiser) request.components.emplace_back(spec.name);
  }
  return model::LoadedModel::open(family, request);
}

flags::FlagSpec lora_format_flag(const std::optional<std::string>& preset) {
  return {.name = "lora_format",
          .help = "whose names the file gets",
          .preset = preset,
          .required = !preset,
          .choices = lora::format_names()};
}

flags::FlagSpec lora_dtype_flag(std::string preset, std::string help) {
  return {.name = "dtype",
          .help = std::move(help),
          .preset = std::move(preset),
          .choices = weights::dtype_choices()};
}

std::optional<at::ScalarType> lora_dtype(const flags::ParsedFlags& flags) {
  return weights::dtype_or_auto(flags.text("dtype"));
}

void warn_of_unknown(progress::Progress& progress, const lora::LoraFile& file) {
  if (file.unknown().empty()) return;
  progress.warn(files::display_path(file.path()) +
                ": left out: " + count_text(file.unknown().size(), "tensor") +
                " whose names say nothing: " + report::list_names(file.unknown(), 3));
}

void warn_of_format(progress::Progress& progress, lora::Format format) {
  const std::string_view warning = formats::lora_spelling(format).warning;
  if (!warning.empty()) progress.warn("warning: " + std::string(warning));
}

std::string count_text(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

}  // namespace atelier::cli
