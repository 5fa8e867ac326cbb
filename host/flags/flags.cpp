#include "host/flags/flags.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/report/problems.h"

namespace atelier::flags {

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

std::optional<uint64_t> parse_unsigned(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc() || stop != end) return std::nullopt;
  return value;
}

// What of `text` is none of the flag's choices; nullopt when all of it is.
std::optional<std::string> wrong_choice(const FlagSpec& flag, const std::string& text) {
  for (size_t begin = 0; !flag.choices.empty() && begin <= text.size();) {
    const size_t end =
        flag.by_component ? std::min(text.find(',', begin), text.size()) : text.size();
    std::string part = text.substr(begin, end - begin);
    if (flag.by_component) part.erase(0, part.find('=') + 1);
    if (std::ranges::find(flag.choices, part) == flag.choices.end()) return part;
    begin = end + 1;
  }
  return std::nullopt;
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
      try {
        formats::parse_list(text);
        return "";
      } catch (const formats::ParseError& error) {
        return quote(text) + " is no JSON list of texts: " + error.what();
      }
    case FlagKind::kSeed:
      if (text == "-1" || parse_unsigned(text)) return "";
      return quote(text) + " is no seed: no whole number from 0 to 2^64 - 1, and not -1";
    case FlagKind::kText:
      if (const auto wrong = wrong_choice(flag, text))
        return quote(*wrong) + " is not one of " + report::list_names(flag.choices);
      return "";
  }
  return "";
}

// What to do about a value with such a problem.
std::string value_hint(const FlagSpec& flag, const std::string& text) {
  const std::string nearest = nearest_choice(wrong_choice(flag, text).value_or(text), flag.choices);
  return nearest.empty() ? flag.help : "did you mean " + nearest + "?";
}

const OtherFlag* find_other(const CommandSpec& command, std::string_view name) {
  const auto it = std::find_if(command.others.begin(), command.others.end(),
                               [&](const OtherFlag& other) { return other.name == name; });
  return it == command.others.end() ? nullptr : &*it;
}

const FlagSpec* find_flag(const CommandSpec& command, std::string_view name) {
  for (const FlagSpec& flag : command.flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

void add_unknown(const CommandSpec& command, const std::string& name, report::Problems& problems) {
  if (const OtherFlag* const other = find_other(command, name)) {
    problems.add("--" + name + " is " +
                     (other->of.empty() ? "no flag of " + command.name : "a flag of " + other->of),
                 other->use);
    return;
  }
  std::vector<std::string> known;
  for (const FlagSpec& flag : command.flags) known.push_back(flag.name);
  const std::string nearest = report::nearest_name(name, known);
  std::string hint = "atelier " + command.name + " --help lists the flags";
  if (command.lacks_family) hint += ", with --plugin also those of a family";
  if (!nearest.empty()) hint = "did you mean --" + nearest + "?";
  problems.add(display_flag(name) + " is not known to " + command.name, hint);
}

}  // namespace

std::string known_word(const std::string& text, const std::vector<std::string>& choices) {
  static const std::map<std::string, std::string, std::less<>> kOtherWords = {
      {"bf16", "bfloat16"},
      {"fp16", "float16"},
      {"half", "float16"},
      {"fp32", "float32"},
      {"float", "float32"},
      {"nextdit_shift", "uniform_dynamic_shift"},  // these three of kohya's trainers
      {"flux_shift", "sigmoid_dynamic_shift"},
      {"sigma", "uniform"},
      {"data_process", "sft:data_process"}};
  const auto word = kOtherWords.find(text);
  const bool is_choice = word != kOtherWords.end() &&
                         std::find(choices.begin(), choices.end(), word->second) != choices.end();
  return is_choice ? word->second : "";
}

std::string nearest_choice(const std::string& text, const std::vector<std::string>& choices) {
  const std::string known = known_word(text, choices);
  return known.empty() ? report::nearest_name(text, choices) : known;
}

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

std::optional<uint64_t> ParsedFlags::seed(std::string_view name) const {
  return parse_unsigned(text(name));
}

bool ParsedFlags::flag(std::string_view name) const {
  const auto found = find_text(name);
  return found && parse_flag(*found).value_or(false);
}

std::vector<std::string> ParsedFlags::texts(std::string_view name) const {
  return value(name).texts;
}

std::vector<std::string> ParsedFlags::list(std::string_view name) const {
  return formats::parse_list(find_text(name).value_or(""));
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
      add_unknown(command, name, problems);
      // Its values, if it has any, are no files of ours.
      const OtherFlag* const other = find_other(command, name);
      while (equals == std::string::npos && (other == nullptr || other->has_value) &&
             !rest.empty() && !rest.front().starts_with("--")) {
        rest.erase(rest.begin());
        if (other == nullptr) break;
      }
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
      problems.add("--" + name + ": a value is missing", "write --" + name + value_text(*flag));
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
      problems.add((place.empty() ? "--" + flag.name : place) + ": " + wrong,
                   value_hint(flag, text));
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

}  // namespace atelier::flags
