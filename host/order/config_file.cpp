#include "host/order/config_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/parse_error.h"
#include "formats/toml_names.h"
#include "host/files/file_reader.h"
#include "host/report/text.h"

#define TOML_HEADER_ONLY 1
#include <toml++/toml.h>

namespace atelier::order {

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
    case FlagKind::kIntegers:
      return "a whole number or a list of them";
    case FlagKind::kReal:
      return "a number";
    case FlagKind::kReals:
      return "a number or a list of them";
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
  if (node.is_floating_point() && (flag.kind == FlagKind::kReal || flag.kind == FlagKind::kReals))
    return report::number_text(*node.value_exact<double>());
  // TOML has no whole numbers from 2^63.
  if (node.is_string() && flag.kind == FlagKind::kSeed) return *node.value_exact<std::string>();
  return std::nullopt;
}

// The text of a flag that takes several numbers.
std::optional<std::string> numbers_value(const FlagSpec& flag, const toml::node& node) {
  const toml::array* const numbers = node.as_array();
  if (numbers == nullptr) return number_value(flag, node);
  std::string out;
  for (const toml::node& number : *numbers) {
    const auto text = number_value(flag, number);
    if (!text) throw Error(ErrorCode::kInvalidArgument, "is a list with " + kind_of(number));
    out += (out.empty() ? "" : ",") + *text;
  }
  return out;
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
    case FlagKind::kIntegers:
    case FlagKind::kReals:
      text = numbers_value(flag, node);
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

toml::table parse_toml(const std::string& text, const std::string& file) {
  const std::string shown = files::display_path(file);
  try {
    formats::check_toml_names(text);
    return toml::parse(text);
  } catch (const formats::ParseError& error) {
    throw files::at_file(file, error, ErrorCode::kInvalidArgument);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorCode::kInvalidArgument,
                shown + ":" + std::to_string(error.source().begin.line) + ": " +
                    std::string(error.description()),
                "TOML is expected: name = value, texts in quotes");
  }
}

void add_unknown(const std::string& place, const std::string& name, bool is_table,
                 const flags::CommandSpec& command, report::Problems& problems) {
  if (const auto other = std::ranges::find(command.others, name, &flags::OtherFlag::name);
      other != command.others.end() && !is_table) {
    problems.add(place + " is " +
                     (other->of.empty() ? "no flag of " + command.name : "a flag of " + other->of),
                 other->use);
    return;
  }
  const std::string nearest = report::nearest_name(name, flags::names_of(command));
  std::string hint = "atelier " + command.name + " --help lists the names";
  if (!nearest.empty()) hint = "did you mean " + nearest + "?";
  if (is_table) hint = "keys stand at the top level, without [sections]";
  problems.add(place + " is not known", hint);
}

}  // namespace

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
  const toml::table table = parse_toml(text, file);
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

std::string read_config(const std::string& path) {
  try {
    return files::read_text_file(path);
  } catch (const Error& error) {
    throw error.at("--config");
  }
}

}  // namespace atelier::order
