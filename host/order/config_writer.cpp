// Configurations as they are written: names of flags, and paths that mean the same in any folder.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "host/files/model_paths.h"
#include "host/order/config_file.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/text.h"

namespace atelier::order {

namespace fs = std::filesystem;

namespace {

using flags::FlagKind;
using flags::FlagSpec;
using nlohmann::json;

// A number as TOML tells it from a whole one.
std::string real_text(double value) {
  std::string text = report::number_text(value);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// A text in quotes: the escapes of TOML are those of JSON but for DEL, which may not stand alone.
std::string text_text(const std::string& text) {
  std::string quoted = json(text).dump();
  for (size_t at = 0; (at = quoted.find('\x7f', at)) != std::string::npos;)
    quoted.replace(at, 1, "\\u007f");
  return quoted;
}

std::string list_text(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ", ") + text_text(part);
  return "[" + out + "]";
}

// One number stands without brackets.
template <typename Number>
std::string numbers_text(const std::vector<Number>& numbers, std::string (*text_of)(Number)) {
  std::string out;
  for (const Number number : numbers) out += (out.empty() ? "" : ", ") + text_of(number);
  return numbers.size() == 1 ? out : "[" + out + "]";
}

// ---- Paths ----

std::string absolute(const std::string& path) {
  if (path.empty()) return path;
  const fs::path whole = fs::absolute(path);
  // "a/../b" is not b where a is a link.
  const bool climbs = std::find(whole.begin(), whole.end(), fs::path("..")) != whole.end();
  return (climbs ? whole : whole.lexically_normal()).string();
}

// Every part of `text` between `separator`.
std::string absolute_parts(const std::string& text, char separator) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (begin > 0) out += separator;
    out += absolute(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

json absolute_entries(const json& entries) {
  if (entries.is_string()) return absolute(entries.get<std::string>());
  json out = entries;
  if (entries.is_array())
    for (json& entry : out) entry = absolute_entries(entry);
  return out;
}

// The value of --model_paths (JSON, one path, or several between commas) with absolute paths.
std::string absolute_model_paths(const std::string& text) {
  std::error_code failure;
  if (fs::exists(text, failure)) return absolute(text);
  if (!text.starts_with('[') && !text.starts_with('"')) return absolute_parts(text, ',');
  const json entries = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return entries.is_discarded() ? text : absolute_entries(entries).dump();
}

// The value of --model_hints with globs that fit anywhere: a relative one fits the end of a path.
std::string floating_hints(const json& hints) {
  json out = json::object();
  for (const auto& [glob, hint] : hints.items())
    out[glob.starts_with('/') || glob.starts_with('*') ? glob : "*" + glob] = hint;
  return out.dump();
}

// "org/name:glob". Of an id that is found below the working folder, the folder is named instead.
std::string absolute_id(const std::string& entry) {
  const size_t colon = entry.rfind(':');
  if (colon == std::string::npos) return entry;
  const std::string folder = files::published_folders(entry.substr(0, colon)).front();
  std::error_code failure;
  const bool is_nearby = fs::path(folder).is_relative() && fs::is_directory(folder, failure);
  const std::string whole = is_nearby ? absolute(folder) : std::string();
  const bool is_plain = !whole.empty() && whole.find_first_of(",:") == std::string::npos;
  return is_plain ? whole + entry.substr(colon) : entry;
}

// An entry of a flag about the files of --model_paths or published ids.
std::string portable_entry(const std::string& entry, const flags::ParsedFlags& flags) {
  const bool is_path = flags.text("model_paths").find(entry) != std::string::npos;
  return is_path ? absolute(entry) : absolute_id(entry);
}

// The parts of a list flag. Entries of --fp8_models are those of --model_paths, or published ids.
std::vector<std::string> portable_list(const FlagSpec& flag, const flags::ParsedFlags& flags) {
  std::vector<std::string> parts = flags.list(flag.name);
  const bool is_fp8 = flag.name == "fp8_models";
  if (!is_fp8 && flag.name != "model_id_with_origin_paths") return parts;
  for (std::string& part : parts) part = is_fp8 ? portable_entry(part, flags) : absolute_id(part);
  return parts;
}

// The value of --quant_options: "entry:method;entry:method".
std::string portable_options(const std::string& text, const flags::ParsedFlags& flags) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(';', begin), text.size());
    const std::string option = text.substr(begin, end - begin);
    const size_t colon = option.rfind(':');
    if (begin > 0) out += ';';
    out += colon == std::string::npos
               ? option
               : portable_entry(option.substr(0, colon), flags) + option.substr(colon);
    begin = end + 1;
  }
  return out;
}

// The folders of --plugin_path, and behind them the one of ATELIER_PLUGIN_PATH that the plugin was
// found in: a resumed run may not have the variable.
std::string portable_plugin_path(const flags::ParsedFlags& flags) {
  const std::string given = absolute_parts(flags.text("plugin_path"), ':');
  const std::string file = plugins::opened_file(flags.find_text("plugin").value_or(""));
  const char* variable = std::getenv("ATELIER_PLUGIN_PATH");
  if (file.empty() || variable == nullptr) return given;
  const std::string folder = fs::path(file).parent_path().string(), all = variable;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(':', begin), all.size());
    std::error_code failure;
    if (fs::equivalent(all.substr(begin, end - begin), folder, failure))
      return given.empty() ? folder : given + ":" + folder;
    begin = end + 1;
  }
  return given;
}

// The text of a flag that is no list, with absolute paths.
std::string portable_text(const FlagSpec& flag, const flags::ParsedFlags& flags) {
  const std::string text = flags.text(flag.name);
  if (is_path(flag)) return absolute(text);
  if (flag.name == "plugin") return text.find('/') == std::string::npos ? text : absolute(text);
  if (flag.name == "plugin_path") return portable_plugin_path(flags);
  if (flag.name == "model_paths") return absolute_model_paths(text);
  if (flag.name == "quant_options" && !text.empty()) return portable_options(text, flags);
  if (flag.name == "model_hints") return floating_hints(flags.json(flag.name));
  return text;
}

std::string value_line(const FlagSpec& flag, const flags::ParsedFlags& flags) {
  switch (flag.kind) {
    case FlagKind::kInteger:
      return std::to_string(flags.integer(flag.name));
    case FlagKind::kIntegers:
      return numbers_text<int64_t>(flags.integers(flag.name), std::to_string);
    case FlagKind::kSeed: {
      const std::string text = flags.text(flag.name);
      return flags.find_integer(flag.name) ? text : text_text(text);
    }
    case FlagKind::kReal:
      return real_text(flags.real(flag.name));
    case FlagKind::kReals:
      return numbers_text<double>(flags.reals(flag.name), real_text);
    case FlagKind::kFlag:
      return flags.flag(flag.name) ? "true" : "false";
    case FlagKind::kList:
      return list_text(portable_list(flag, flags));
    case FlagKind::kJson:
    case FlagKind::kText:
      break;
  }
  return text_text(portable_text(flag, flags));
}

}  // namespace

bool is_path(const FlagSpec& flag) {
  const std::string& name = flag.value_name;
  const bool holds_path = name == "FILE" || name == "FOLDER" || name == "FILE|FOLDER";
  // These two hold several.
  return holds_path && flag.name != "model_paths" && flag.name != "plugin_path";
}

std::string write_config(const flags::CommandSpec& command, const flags::ParsedFlags& flags) {
  std::string out, group;
  for (const FlagSpec& flag : command.flags) {
    const std::optional<std::string> text = flags.find_text(flag.name);
    if (!text || is_beginning(flag.name)) continue;
    const bool is_empty =
        flag.name == "plugin_path" ? portable_plugin_path(flags).empty() : text->empty();
    // An empty value says something only where the preset is another.
    if (is_empty && flag.preset.value_or("").empty()) continue;
    if (flag.group != group) out += (group.empty() ? "# " : "\n# ") + (group = flag.group) + "\n";
    out += flag.name + " = " + value_line(flag, flags) + "\n";
  }
  return out;
}

bool is_beginning(std::string_view name) {
  return name == "config" || name == "resume" || name == "dry_run";
}

}  // namespace atelier::order
