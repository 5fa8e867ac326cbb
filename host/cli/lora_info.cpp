// atelier lora info: what LoRA files hold.
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/lora_names.h"
#include "host/cli/commands.h"
#include "host/cli/lora.h"
#include "host/files/file_reader.h"
#include "host/lora/lora_file.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::cli {

namespace {

using files::display_path;
using Json = nlohmann::ordered_json;

}  // namespace

flags::CommandSpec lora_info_command() {
  flags::CommandSpec command{"lora info", "Says what LoRA files add to, and by how much."};
  command.flags = {
      {.name = "json",
       .kind = flags::FlagKind::kFlag,
       .help = "one JSON object a line for each file",
       .preset = "false"},
  };
  command.positional = "FILE|FOLDER...";
  command.min_positional = 1;
  return command;
}

namespace {

// "blocks.12.attn.to_out.0" and "blocks_12_attn": the first number, that of the block, is `{}`.
std::string layer_kind(const std::string& name) {
  const auto is_digit = [&](size_t i) {
    return i < name.size() && name[i] >= '0' && name[i] <= '9';
  };
  for (size_t i = 1; i < name.size(); ++i) {
    if (!is_digit(i) || (name[i - 1] != '.' && name[i - 1] != '_')) continue;
    size_t end = i;
    while (is_digit(end)) ++end;
    if (end < name.size() && name[end] != '.' && name[end] != '_') continue;
    return name.substr(0, i) + "{}" + name.substr(end);
  }
  return name;
}

const char* form_name(const lora::LoraLayer& layer) {
  if (!layer.magnitude.empty()) return "DoRA";
  switch (layer.form) {
    case lora::LayerForm::kNone:
      return "bias";
    case lora::LayerForm::kLora:
      return "LoRA";
    case lora::LayerForm::kLoha:
      return "LoHa";
    case lora::LayerForm::kLokr:
      return "LoKr";
    case lora::LayerForm::kDifference:
      return "difference";
  }
  return "";
}

Json describe(const std::string& path) {
  const lora::LoraFile file = lora::LoraFile::open(path);
  std::map<int64_t, int64_t> ranks;
  std::map<std::string, int64_t> dtypes;
  std::map<double, int64_t> scales;
  std::map<std::string, int64_t> kinds, forms;
  for (const lora::LoraLayer& layer : file.layers()) {
    if (layer.rank > 0) ++ranks[layer.rank];
    ++scales[layer.scale];
    ++kinds[layer_kind(layer.name)];
    ++forms[form_name(layer)];
  }
  for (const auto& [tensor, meta] : file.tensors().index().tensors()) {
    const formats::LoraRole role = formats::parse_lora_tensor(tensor).role;
    if (role != formats::LoraRole::kAlpha && role != formats::LoraRole::kScale &&
        role != formats::LoraRole::kUnknown)
      ++dtypes[std::string(formats::dtype_name(files::file_dtype(meta.dtype)))];
  }
  Json out;
  out["path"] = path;
  out["layers"] = file.layers().size();
  out["forms"] = forms;
  out["bytes"] = file.tensors().bytes();
  for (const auto& [rank, count] : ranks)
    out["ranks"].push_back({{"rank", rank}, {"layers", count}});
  for (const auto& [scale, count] : scales)
    out["scales"].push_back({{"scale", scale}, {"layers", count}});
  for (const auto& [dtype, count] : dtypes) out["dtypes"][dtype] = count;
  for (const auto& [kind, count] : kinds) out["targets"][kind] = count;
  if (!file.unknown().empty()) out["unknown"] = file.unknown();
  for (const auto& [key, value] : file.tensors().metadata()) out["metadata"][key] = value;
  return out;
}

// Text of a file on one line.
std::string one_line(const std::string& text, size_t max_chars) {
  const std::string quoted = formats::quote_and_escape(text, max_chars);
  return quoted.substr(1, quoted.size() - 2);
}

// "32" where all layers have it, "16 (12 layers), 32 (48 layers)" otherwise.
std::string counted(const Json& list, const char* key) {
  if (list.size() == 1) return list[0][key].dump();
  std::string text;
  for (const Json& item : list)
    text +=
        (text.empty() ? "" : ", ") + item[key].dump() + " (" + item["layers"].dump() + " layers)";
  return text;
}

void print(const Json& info) {
  std::string dtypes;
  for (const auto& [name, count] : info["dtypes"].items())
    dtypes += ", " + name + " " + count.dump();
  std::string forms;
  for (const auto& [name, count] : info["forms"].items()) {
    if (info["forms"].size() > 1 || name != "LoRA") forms += ", " + name + " " + count.dump();
  }
  const std::string ranks =
      info.contains("ranks") ? ", rank " + counted(info["ranks"], "rank") : std::string();
  std::printf("%s: %s layers%s%s, scale %s, %s%s\n",
              display_path(info["path"].get<std::string>()).c_str(), info["layers"].dump().c_str(),
              forms.c_str(), ranks.c_str(), counted(info["scales"], "scale").c_str(),
              report::bytes_text(info["bytes"].get<int64_t>()).c_str(), dtypes.c_str());
  for (const auto& [kind, count] : info["targets"].items())
    std::printf("  %s: %s\n", one_line(kind, 200).c_str(), count.dump().c_str());
  if (info.contains("unknown"))
    std::printf("  names that say nothing: %s\n",
                report::list_names(info["unknown"].get<std::vector<std::string>>(), 10).c_str());
  if (info.contains("metadata")) {
    for (const auto& [key, value] : info["metadata"].items())
      std::printf("  %s = %s\n", one_line(key, 60).c_str(),
                  one_line(value.get<std::string>(), 120).c_str());
  }
}

}  // namespace

int run_lora_info(std::span<const std::string> arguments) {
  const flags::CommandSpec command = lora_info_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  report::Problems problems;
  for (const std::string& path : flags.positional()) {
    problems.collect([&] {
      const Json info = describe(path);
      if (flags.flag("json")) {
        std::puts(report::printable_json(info.dump(-1, ' ', false, Json::error_handler_t::replace))
                      .c_str());
      } else {
        print(info);
      }
    });
  }
  problems.throw_if_any();
  return 0;
}

}  // namespace atelier::cli
