#include "host/cli/flags.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <sstream>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "host/report/problems.h"

namespace atelier::cli {

namespace po = boost::program_options;

namespace {

constexpr const char* kPositional = "\x01";  // no flag can be called so

std::optional<int64_t> parse_integer(const std::string& text) {
  int64_t value = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, failure] = std::from_chars(begin, text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || text.empty())
    return std::nullopt;
  return value;
}

std::optional<double> parse_real(const std::string& text) {
  double value = 0;
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, failure] = std::from_chars(begin, text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

// "1", "true", "on", "yes" and their opposites.
std::optional<bool> parse_flag(const std::string& text) {
  for (const char* word : {"1", "true", "on", "yes", "True"}) {
    if (text == word) return true;
  }
  for (const char* word : {"0", "false", "off", "no", "False"}) {
    if (text == word) return false;
  }
  return std::nullopt;
}

std::string quote(std::string_view text) {
  return formats::quote_and_escape(text);
}

// "--name", escaped where it is no plain name.
std::string display_flag(const std::string& name) {
  const std::string text = quote("--" + name);
  return text.size() == name.size() + 4 ? "--" + name : text;
}

// What is wrong with one value of a flag; empty when nothing is.
std::string value_problem(const FlagSpec& flag, const std::string& text) {
  switch (flag.kind) {
    case FlagKind::kInteger:
      return parse_integer(text) ? "" : quote(text) + " is no whole number";
    case FlagKind::kReal:
      return parse_real(text) ? "" : quote(text) + " is no number";
    case FlagKind::kFlag:
      return parse_flag(text) ? "" : quote(text) + " is neither true nor false";
    case FlagKind::kJson:
      try {
        formats::parse_json(text);
        return "";
      } catch (const formats::ParseError& error) {
        return quote(text) + " is no JSON: " + error.what();
      }
    case FlagKind::kList:
      return "";
    case FlagKind::kText:
      if (flag.choices.empty() ||
          std::find(flag.choices.begin(), flag.choices.end(), text) != flag.choices.end())
        return "";
      return quote(text) + " is not one of " + report::list_names(flag.choices);
  }
  return "";
}

const FlagSpec* find_flag(const CommandSpec& command, std::string_view name) {
  for (const FlagSpec& flag : command.flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

std::string kind_text(const FlagSpec& flag) {
  switch (flag.kind) {
    case FlagKind::kInteger:
      return " N";
    case FlagKind::kReal:
      return " X";
    case FlagKind::kJson:
      return " JSON";
    case FlagKind::kList:
      return " A,B";
    case FlagKind::kFlag:
      return "";
    case FlagKind::kText:
      break;
  }
  if (flag.choices.empty()) return " TEXT";
  std::string out = " ";
  for (const std::string& choice : flag.choices) out += (out.size() > 1 ? "|" : "") + choice;
  return out;
}

}  // namespace

bool ParsedFlags::is_given(std::string_view name) const {
  return value(name).given;
}

std::string ParsedFlags::place(std::string_view name) const {
  const Value& found = value(name);
  return found.place.empty() ? "--" + std::string(name) : found.place;
}

const ParsedFlags::Value& ParsedFlags::value(std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end())
    throw Error(ErrorCode::kInternal, "flag --" + std::string(name) + " is not declared");
  return it->second;
}

std::optional<std::string> ParsedFlags::find_text(std::string_view name) const {
  const Value& found = value(name);
  return found.texts.empty() ? std::nullopt : std::optional(found.texts.back());
}

std::optional<int64_t> ParsedFlags::find_integer(std::string_view name) const {
  const auto text = find_text(name);
  return text ? parse_integer(*text) : std::nullopt;
}

std::optional<double> ParsedFlags::find_real(std::string_view name) const {
  const auto text = find_text(name);
  return text ? parse_real(*text) : std::nullopt;
}

std::string ParsedFlags::text(std::string_view name) const {
  const auto found = find_text(name);
  if (!found) throw Error(ErrorCode::kInternal, "flag --" + std::string(name) + " has no value");
  return *found;
}

int64_t ParsedFlags::integer(std::string_view name) const {
  return *parse_integer(text(name));
}
double ParsedFlags::real(std::string_view name) const {
  return *parse_real(text(name));
}
nlohmann::json ParsedFlags::json(std::string_view name) const {
  return formats::parse_json(text(name));
}

bool ParsedFlags::flag(std::string_view name) const {
  const auto found = find_text(name);
  return found && parse_flag(*found).value_or(false);
}

std::vector<std::string> ParsedFlags::texts(std::string_view name) const {
  return value(name).texts;
}

std::vector<std::string> ParsedFlags::list(std::string_view name) const {
  std::vector<std::string> parts;
  std::stringstream rest(find_text(name).value_or(""));
  for (std::string part; std::getline(rest, part, ',');) {
    const size_t first = part.find_first_not_of(" \t\n");
    if (first == std::string::npos) continue;
    parts.push_back(part.substr(first, part.find_last_not_of(" \t\n") - first + 1));
  }
  return parts;
}

std::map<std::string, std::string> ParsedFlags::all() const {
  std::map<std::string, std::string> out;
  for (const auto& [name, found] : values_) {
    if (!found.texts.empty()) out[name] = found.texts.back();
  }
  return out;
}

ParsedFlags parse_flags(const CommandSpec& command, std::span<const std::string> arguments) {
  report::Problems problems;
  ParsedFlags parsed = parse_flags(command, arguments, {}, problems);
  problems.throw_if_any();
  return parsed;
}

ParsedFlags parse_flags(const CommandSpec& command, std::span<const std::string> arguments,
                        std::span<const GivenValue> below, report::Problems& problems) {
  ParsedFlags parsed;
  std::vector<std::string> known;
  po::options_description options;
  for (const FlagSpec& flag : command.flags) {
    known.push_back(flag.name);
    auto* value = po::value<std::vector<std::string>>()->composing();
    if (flag.kind == FlagKind::kFlag) value->implicit_value({"true"}, "true");
    options.add_options()(flag.name.c_str(), value, flag.help.c_str());
    parsed.values_.emplace(flag.name, ParsedFlags::Value{flag.kind, {}, false});
  }

  // One value per flag, whatever it begins with: "--cfg_scale -1". What names a flag is no value,
  // so that a forgotten value is told from the next flag.
  const auto names_flag = [&](const std::string& text) {
    return text.starts_with("--") && text.size() > 2 &&
           find_flag(command, std::string_view(text).substr(2, text.find('=') - 2)) != nullptr;
  };
  const auto style = [&](std::vector<std::string>& rest) {
    std::vector<po::option> found;
    const std::string token = rest.front();
    po::option option;
    option.original_tokens = {token};
    if (token == "--") {
      rest.erase(rest.begin());
      for (const std::string& text : rest) {
        option.string_key = kPositional;
        option.value = {text};
        found.push_back(option);
      }
      rest.clear();
      return found;
    }
    if (!token.starts_with("--")) {
      rest.erase(rest.begin());
      const bool looks_like_flag = token.size() > 1 && token.front() == '-' && !parse_real(token);
      if (looks_like_flag) {
        const std::string nearest = report::nearest_name(token.substr(1), known);
        problems.add(
            quote(token) + " is no flag of " + command.name,
            nearest.empty() ? "flags begin with two dashes" : "did you mean --" + nearest + "?");
        return found.emplace_back(), found;
      }
      option.string_key = kPositional;
      option.value = {token};
      found.push_back(option);
      return found;
    }
    const size_t equals = token.find('=');
    const std::string name = token.substr(2, equals == std::string::npos ? equals : equals - 2);
    rest.erase(rest.begin());
    const FlagSpec* flag = find_flag(command, name);
    if (flag == nullptr) {
      const std::string nearest = report::nearest_name(name, known);
      problems.add(display_flag(name) + " is not known to " + command.name,
                   nearest.empty() ? "atelier " + command.name + " --help lists the flags"
                                   : "did you mean --" + nearest + "?");
      // Its value, if it has one, is no file of ours.
      if (equals == std::string::npos && !rest.empty() && !rest.front().starts_with("--"))
        rest.erase(rest.begin());
      return found.emplace_back(), found;
    }
    option.string_key = name;
    if (equals != std::string::npos) {
      option.value = {token.substr(equals + 1)};
    } else if (flag->kind == FlagKind::kFlag) {
      option.value = {"true"};
      if (!rest.empty() && parse_flag(rest.front()) && command.positional.empty()) {
        option.value = {rest.front()};
        rest.erase(rest.begin());
      }
    } else if (rest.empty() || names_flag(rest.front())) {
      problems.add("--" + name + ": a value is missing", "write --" + name + kind_text(*flag));
      return found.emplace_back(), found;
    } else {
      option.value = {rest.front()};
      rest.erase(rest.begin());
    }
    found.push_back(option);
    return found;
  };

  po::command_line_parser parser(std::vector<std::string>(arguments.begin(), arguments.end()));
  parser.options(options).extra_style_parser(style).allow_unregistered();
  const po::parsed_options tokens = parser.run();
  const auto take = [&](const FlagSpec& flag, const std::string& text, const std::string& place) {
    ParsedFlags::Value& value = parsed.values_.at(flag.name);
    value.given = true;
    if (const std::string wrong = value_problem(flag, text); !wrong.empty()) {
      problems.add((place.empty() ? "--" + flag.name : place) + ": " + wrong, flag.help);
      return;
    }
    value.place = place;
    value.texts.push_back(text);
  };
  for (const po::option& option : tokens.options) {
    if (option.string_key.empty()) continue;  // reported above
    if (option.string_key == kPositional) {
      parsed.positional_.push_back(option.value.front());
      continue;
    }
    const FlagSpec& flag = *find_flag(command, option.string_key);
    if (parsed.values_.at(flag.name).given && !flag.repeated)
      problems.add("--" + flag.name + ": given twice", "give it once");
    take(flag, option.value.front(), "");
  }
  for (const FlagSpec& flag : command.flags) {
    if (parsed.values_.at(flag.name).given) continue;
    for (const GivenValue& given : below) {
      if (given.name != flag.name) continue;
      take(flag, given.text, given.place);
      break;
    }
  }
  for (const FlagSpec& flag : command.flags) {
    ParsedFlags::Value& value = parsed.values_.at(flag.name);
    if (value.texts.empty() && flag.preset) value.texts = {*flag.preset};
    if (flag.required && !value.given) problems.add("--" + flag.name + " is missing", flag.help);
  }
  const auto count = static_cast<int>(parsed.positional_.size());
  if (command.positional.empty() && count > 0) {
    problems.add(quote(parsed.positional_.front()) + ": " + command.name + " takes flags only",
                 "quote a value that holds spaces");
  } else if (count < command.min_positional) {
    problems.add(command.positional + " is missing",
                 "atelier " + command.name + " " + command.positional);
  } else if (count > command.max_positional) {
    problems.add(
        quote(parsed.positional_[static_cast<size_t>(command.max_positional)]) + " is one too many",
        "atelier " + command.name + " " + command.positional);
  }
  return parsed;
}

std::optional<std::string> peek_flag(std::span<const std::string> arguments,
                                     std::string_view name) {
  const std::string flag = "--" + std::string(name);
  std::optional<std::string> found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") break;
    if (arguments[i] == flag && i + 1 < arguments.size()) found = arguments[i + 1];
    if (arguments[i].starts_with(flag + "=")) found = arguments[i].substr(flag.size() + 1);
  }
  return found;
}

bool wants_help(std::span<const std::string> arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& text) { return text == "--help" || text == "-h"; });
}

std::string help_text(const CommandSpec& command) {
  std::string out = "atelier " + command.name +
                    (command.positional.empty() ? "" : " " + command.positional) +
                    (command.flags.empty() ? "" : " [flags]") + "\n" + command.summary + "\n";
  size_t width = 0;
  for (const FlagSpec& flag : command.flags)
    width = std::max(width, flag.name.size() + kind_text(flag).size());
  width = std::min<size_t>(width, 36);
  std::string group;
  for (const FlagSpec& flag : command.flags) {
    if (flag.group != group) out += "\n" + (group = flag.group) + "\n";
    std::string line = "  --" + flag.name + kind_text(flag);
    if (line.size() > width + 4) {
      line += "\n" + std::string(width + 6, ' ');
    } else {
      line.resize(width + 6, ' ');
    }
    line += flag.help;
    if (flag.required) line += " (required)";
    if (flag.repeated) line += " (may be repeated)";
    if (flag.preset && !flag.preset->empty()) line += " [" + *flag.preset + "]";
    out += line + "\n";
  }
  return out;
}

std::vector<FlagSpec> flags_of_inputs(std::span<const InputSpec> inputs, InputUse use,
                                      std::span<const FlagSpec> taken) {
  std::vector<FlagSpec> flags;
  for (const InputSpec& input : inputs) {
    if (input.use != use && input.use != InputUse::kBoth && use != InputUse::kBoth) continue;
    const bool is_taken = std::any_of(
        taken.begin(), taken.end(), [&](const FlagSpec& flag) { return flag.name == input.name; });
    if (is_taken) continue;
    FlagSpec flag;
    flag.name = std::string(input.name);
    flag.help = std::string(input.help);
    if (input.variants != "*") flag.help += " (" + std::string(input.variants) + ")";
    switch (input.kind) {
      case InputKind::kInteger:
        flag.kind = FlagKind::kInteger;
        break;
      case InputKind::kReal:
        flag.kind = FlagKind::kReal;
        break;
      case InputKind::kFlag:
        flag.kind = FlagKind::kFlag;
        break;
      case InputKind::kImageList:
        flag.repeated = true;
        break;
      default:
        break;
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::vector<FlagSpec> model_flags(std::string dtype) {
  return {
      {.name = "plugin", .help = "family name, or path of a plugin", .required = true},
      {.name = "plugin_path", .help = "folders with plugins, separated by colons", .preset = ""},
      {.name = "model_paths",
       .help = "files, folders or globs: a path, or JSON '[\"a\", [\"b-1\", \"b-2\"]]'",
       .preset = ""},
      {.name = "model_id_with_origin_paths",
       .kind = FlagKind::kList,
       .help = "published files: org/name:glob,org/name:glob",
       .preset = ""},
      {.name = "tokenizer_path", .help = "folder or file of the tokenizer", .preset = ""},
      {.name = "model_hints",
       .kind = FlagKind::kJson,
       .help = "what a file is, where its tensors cannot tell: '{\"*glob*\": {\"component\": "
               "\"dit\"}}'",
       .preset = "{}"},
      {.name = "dtype",
       .help = "of every weight",
       .preset = std::move(dtype),
       .choices = {"auto", "float32", "bfloat16", "float16"}},
      {.name = "device",
       .help = "auto, cpu, cuda or cuda:N; stand-in:512MiB:4GB/s: the CPU with the memory and the "
               "copies of such a GPU",
       .preset = "auto"},
      {.name = "storage",
       .kind = FlagKind::kList,
       .help = "8-bit weights by component: dit=fp8,text_encoder=int8; published: as the file has "
               "them; bf16 and plain: in dtype",
       .preset = ""},
      {.name = "compute",
       .kind = FlagKind::kList,
       .help = "of products by component: dit=w8a8 multiplies weights that are stored as fp8 or "
               "int8 in 8 bits; bf16 and plain: in dtype",
       .preset = ""},
      {.name = "fp8_models",
       .kind = FlagKind::kList,
       .help = "entries of model_paths or model_id_with_origin_paths that are stored as fp8",
       .preset = ""},
      {.name = "offload",
       .kind = FlagKind::kList,
       .help = "where blocks rest that come to the device when they run, by component: "
               "dit=host,text_encoder=disk",
       .preset = ""},
      {.name = "resident_blocks",
       .kind = FlagKind::kList,
       .help = "with offload, blocks that stay on the device: 20 of the denoiser, or "
               "dit=20,text_encoder=4",
       .preset = ""},
      {.name = "prefetch",
       .kind = FlagKind::kInteger,
       .help = "with offload, blocks that are on their way while one runs",
       .preset = "2"},
  };
}

std::map<std::string, DetectHint> parse_hints(const nlohmann::json& hints) {
  const Error malformed(ErrorCode::kInvalidArgument,
                        "--model_hints: globs with component and variant are expected",
                        "write '{\"*glob*\": {\"component\": \"dit\", \"variant\": \"name\"}}'");
  if (!hints.is_object()) throw malformed;
  std::map<std::string, DetectHint> out;
  for (const auto& [glob, said] : hints.items()) {
    if (!said.is_object()) throw malformed;
    DetectHint hint;
    for (const auto& [key, value] : said.items()) {
      if (!value.is_string() || (key != "component" && key != "variant")) throw malformed;
      (key == "component" ? hint.component : hint.variant) = value.get<std::string>();
    }
    out.emplace(glob, std::move(hint));
  }
  return out;
}

checkpoint::LoadRequest load_request(const ParsedFlags& flags) {
  checkpoint::LoadRequest request;
  request.model_paths = flags.text("model_paths");
  request.model_id_with_origin_paths = flags.text("model_id_with_origin_paths");
  request.tokenizer_path = flags.text("tokenizer_path");
  request.dtype = flags.text("dtype");
  request.device = flags.text("device");
  request.hints = parse_hints(flags.json("model_hints"));
  request.storage = checkpoint::parse_storage(flags.list("storage"));
  request.compute = checkpoint::parse_compute(flags.list("compute"));
  request.fp8_models = flags.list("fp8_models");
  request.placement.offload = checkpoint::parse_offload(flags.list("offload"));
  request.placement.resident_blocks =
      checkpoint::parse_resident_blocks(flags.list("resident_blocks"));
  request.placement.prefetch = flags.integer("prefetch");
  return request;
}

}  // namespace atelier::cli
