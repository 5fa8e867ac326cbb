#include "host/train/config_file.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/files/file_reader.h"
#include "host/files/model_paths.h"
#include "host/report/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace atelier::train {

namespace fs = std::filesystem;

namespace {

using formats::quote_and_escape;

using flags::FlagKind;
using flags::FlagSpec;
using nlohmann::json;

// What a value is, in words.
std::string kind_of(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  if (node.is_string()) return "text";
  if (node.is_integer()) return "a whole number";
  if (node.is_floating_point()) return "a number";
  if (node.is_boolean()) return "true or false";
  return "a date";
}

json to_json(const toml::node& node) {
  json out;
  if (const toml::table* table = node.as_table()) {
    out = json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = to_json(value);
  } else if (const toml::array* array = node.as_array()) {
    out = json::array();
    for (const toml::node& value : *array) out.push_back(to_json(value));
  } else if (const auto text = node.value_exact<std::string>()) {
    out = *text;
  } else if (const auto integer = node.value_exact<int64_t>()) {
    out = *integer;
  } else if (const auto real = node.value_exact<double>()) {
    out = *real;
  } else if (const auto flag = node.value_exact<bool>()) {
    out = *flag;
  } else {
    throw Error(ErrorCode::kInvalidArgument, "holds a date");
  }
  return out;
}

// Texts, as formats::parse_list() reads them: joined with commas, or JSON where one holds a comma.
std::string join(const toml::array& array) {
  std::string out;
  bool is_plain = true;
  for (const toml::node& node : array) {
    const auto part = node.value_exact<std::string>();
    if (!part) throw Error(ErrorCode::kInvalidArgument, "is a list with " + kind_of(node));
    is_plain &= part->find_first_of(",[ ") == std::string::npos;
    out += (out.empty() ? "" : ",") + *part;
  }
  return is_plain ? out : to_json(array).dump();
}

// A text flag that may also be JSON on the command line.
bool may_be_json(const FlagSpec& flag) {
  return flag.kind == FlagKind::kJson || flag.name == "model_paths";
}

std::string wanted(const FlagSpec& flag) {
  switch (flag.kind) {
    case FlagKind::kInteger:
    case FlagKind::kSeed:
      return "a whole number";
    case FlagKind::kReal:
      return "a number";
    case FlagKind::kFlag:
      return "true or false";
    case FlagKind::kList:
      return "a list of texts";
    case FlagKind::kJson:
    case FlagKind::kText:
      break;
  }
  return may_be_json(flag) ? "text, a list or a table" : "text";
}

// A value of a flag that takes text, as the command line has it; nullopt: it is none.
std::optional<std::string> text_value(const FlagSpec& flag, const toml::node& node) {
  if (node.is_string()) return *node.value_exact<std::string>();
  if (node.is_array() && flag.kind == FlagKind::kList) return join(*node.as_array());
  if ((node.is_array() || node.is_table()) && may_be_json(flag)) return to_json(node).dump();
  return std::nullopt;
}

// The text of a flag that takes a number.
std::optional<std::string> number_value(const FlagSpec& flag, const toml::node& node) {
  if (node.is_integer()) return std::to_string(*node.value_exact<int64_t>());
  if (node.is_floating_point() && flag.kind == FlagKind::kReal)
    return report::number_text(*node.value_exact<double>());
  // TOML has no whole numbers from 2^63.
  if (node.is_string() && flag.kind == FlagKind::kSeed) return *node.value_exact<std::string>();
  return std::nullopt;
}

std::optional<std::string> flag_value(const toml::node& node) {
  if (!node.is_boolean()) return std::nullopt;
  return *node.value_exact<bool>() ? "true" : "false";
}

// The value as it would be written on the command line. Throws Error saying what it is instead.
std::string value_text(const FlagSpec& flag, const toml::node& node) {
  std::optional<std::string> text;
  switch (flag.kind) {
    case FlagKind::kFlag:
      text = flag_value(node);
      break;
    case FlagKind::kInteger:
    case FlagKind::kSeed:
    case FlagKind::kReal:
      text = number_value(flag, node);
      break;
    case FlagKind::kText:
    case FlagKind::kList:
    case FlagKind::kJson:
      text = text_value(flag, node);
      break;
  }
  if (!text) throw Error(ErrorCode::kInvalidArgument, kind_of(node) + " is not " + wanted(flag));
  return *text;
}

toml::table parse_toml(const std::string& text, const std::string& shown) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                shown + ":" + std::to_string(error.source().begin.line) + ": " +
                    std::string(error.description()),
                "TOML is expected: name = value, texts in quotes");
  }
}

void add_unknown(const std::string& place, const std::string& name, bool is_table,
                 const flags::CommandSpec& command, report::Problems& problems) {
  const std::string nearest = report::nearest_name(name, flags::names_of(command));
  std::string hint = "atelier " + command.name + " --help lists the names";
  if (!nearest.empty()) hint = "did you mean " + nearest + "?";
  if (is_table) hint = "keys stand at the top level, without [sections]";
  problems.add(place + " is not known", hint);
}

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

// The parts of a list flag. Entries of --fp8_models are those of --model_paths, or published ids.
std::vector<std::string> portable_list(const FlagSpec& flag, const flags::ParsedFlags& flags) {
  std::vector<std::string> parts = flags.list(flag.name);
  const bool is_fp8 = flag.name == "fp8_models";
  if (!is_fp8 && flag.name != "model_id_with_origin_paths") return parts;
  const std::string paths = is_fp8 ? flags.text("model_paths") : "";
  for (std::string& part : parts)
    part = paths.find(part) != std::string::npos ? absolute(part) : absolute_id(part);
  return parts;
}

// The text of a flag that is no list, with absolute paths.
std::string portable_text(const FlagSpec& flag, const flags::ParsedFlags& flags) {
  const std::string text = flags.text(flag.name);
  if (is_path(flag)) return absolute(text);
  if (flag.name == "plugin") return text.find('/') == std::string::npos ? text : absolute(text);
  if (flag.name == "plugin_path") return absolute_parts(text, ':');
  if (flag.name == "model_paths") return absolute_model_paths(text);
  if (flag.name == "model_hints") return floating_hints(flags.json(flag.name));
  return text;
}

std::string value_line(const FlagSpec& flag, const flags::ParsedFlags& flags) {
  switch (flag.kind) {
    case FlagKind::kInteger:
      return std::to_string(flags.integer(flag.name));
    case FlagKind::kSeed: {
      const std::string text = flags.text(flag.name);
      return flags.find_integer(flag.name) ? text : text_text(text);
    }
    case FlagKind::kReal:
      return real_text(flags.real(flag.name));
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

// Whether a line begins so.
static bool has_line(const std::string& text, const std::string& begin) {
  return text.starts_with(begin) || text.find("\n" + begin) != std::string::npos;
}

Error other_configuration(const std::string& place, std::string_view program) {
  const std::string_view flags =
      program == kAiToolkit
          ? "--model_paths for name_or_path, --dataset_base_path for folder_path, "
            "--lora_base_model "
            "with --lora_rank for linear, --learning_rate for lr, --max_train_steps for steps"
          : "--model_paths for ckpt_path, --dataset_base_path for dataset, --lora_base_model with "
            "--lora_rank for [adapter] rank, --learning_rate for [optimizer] lr, --num_epochs for "
            "epochs";
  return Error(ErrorCode::kInvalidArgument,
               place + ": is a configuration of " + std::string(program) + ", which is not read",
               "write flags of atelier train: " + std::string(flags));
}

std::vector<flags::GivenValue> parse_config_text(const std::string& text, const std::string& file,
                                                 const flags::CommandSpec& command,
                                                 report::Problems& problems) {
  const std::string shown = files::display_path(file);
  if (has_line(text, "job:")) throw other_configuration(shown, kAiToolkit);
  const toml::table table = parse_toml(text, shown);
  if (table["model"]["type"].is_string()) throw other_configuration(shown, kDiffusionPipe);
  std::vector<std::pair<uint32_t, const toml::key*>> lines;
  for (const auto& [key, node] : table) lines.emplace_back(key.source().begin.line, &key);
  std::sort(lines.begin(), lines.end());
  std::vector<flags::GivenValue> values;
  for (const auto& [number, key] : lines) {
    const toml::node& node = *table.get(*key);
    const std::string name(key->str());
    const std::string line = shown + ":" + std::to_string(number) + ": ";
    const FlagSpec* flag = flags::find_flag(command, name);
    if (!flag) {
      add_unknown(line + quote_and_escape(name), name, node.is_table(), command, problems);
      continue;
    }
    const std::string place = line + name;
    try {
      const toml::array* const several = flag->repeated ? node.as_array() : nullptr;
      if (several == nullptr) values.push_back({name, value_text(*flag, node), place});
      for (size_t i = 0; several != nullptr && i < several->size(); ++i)
        values.push_back({name, value_text(*flag, *several->get(i)), place});
    } catch (const Error& error) {
      problems.add(error.at(place));
    }
  }
  return values;
}

std::vector<flags::GivenValue> read_config_file(const std::string& path,
                                                const flags::CommandSpec& command,
                                                report::Problems& problems) {
  std::string text;
  try {
    text = files::read_text_file(path);
  } catch (const Error& error) {
    throw error.at("--config");
  }
  return parse_config_text(text, path, command, problems);
}

std::string write_config(const flags::CommandSpec& command, const flags::ParsedFlags& flags) {
  std::string out, group;
  for (const FlagSpec& flag : command.flags) {
    const std::optional<std::string> text = flags.find_text(flag.name);
    // An empty value says something only where the preset is another.
    if (!text || is_beginning(flag.name) || (text->empty() && flag.preset.value_or("").empty()))
      continue;
    if (flag.group != group) out += (group.empty() ? "# " : "\n# ") + (group = flag.group) + "\n";
    out += flag.name + " = " + value_line(flag, flags) + "\n";
  }
  return out;
}

bool is_beginning(std::string_view name) {
  return name == "config" || name == "resume" || name == "dry_run";
}

}  // namespace atelier::train
