#include "host/flags/flags.h"

#include <algorithm>
#include <boost/program_options.hpp>
#include <cmath>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/flags/compat_flags.h"
#include "host/flags/short_names.h"
#include "host/report/problems.h"
#include "host/report/text.h"

namespace atelier::flags {

namespace po = boost::program_options;

namespace {

constexpr std::pair<char, std::string_view> kShortNames[] = {
    {'p', "prompt"},      {'n', "negative_prompt"},     {'o', "output"}, {'W', "width"},
    {'H', "height"},      {'s', "num_inference_steps"}, {'S', "seed"},   {'C', "cfg_scale"},
    {'i', "input_image"}, {'m', "model_paths"}};

// "+5" is 5.
std::string_view without_plus(std::string_view text) {
  return text.starts_with('+') ? text.substr(1) : text;
}

std::optional<int64_t> parse_integer(std::string_view text) {
  return report::parse_number<int64_t>(without_plus(text));
}

// The parts of "1, 25", which may stand in brackets.
std::vector<std::string_view> parts_of(std::string_view text) {
  if (text.starts_with('[') && text.ends_with(']')) text = text.substr(1, text.size() - 2);
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view part = text.substr(begin, end - begin);
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

std::optional<double> parse_real(std::string_view text) {
  const auto value = report::parse_number<double>(without_plus(text));
  return value && std::isfinite(*value) ? value : std::nullopt;
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

std::optional<uint64_t> parse_unsigned(std::string_view text) {
  return report::parse_number<uint64_t>(text);
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
    case FlagKind::kIntegers:
      for (const std::string_view part : parts_of(text)) {
        if (!parse_integer(part)) return quote(part) + " is no whole number";
      }
      return "";
    case FlagKind::kReal:
      return parse_real(text) ? "" : quote(text) + " is no number";
    case FlagKind::kReals:
      for (const std::string_view part : parts_of(text)) {
        if (!parse_real(part)) return quote(part) + " is no number";
      }
      return "";
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

// What to do about a value with such a problem. Of a wrong choice the problem names all others.
std::string value_hint(const FlagSpec& flag, const std::string& text) {
  if (const std::string_view use = use_of_value(flag.name, text); !use.empty())
    return std::string(use);
  const std::optional<std::string> wrong = wrong_choice(flag, text);
  const std::string nearest = nearest_choice(wrong.value_or(text), flag.choices);
  if (!nearest.empty()) return "did you mean " + nearest + "?";
  return wrong ? "" : flag.help;
}

const OtherFlag* find_other(const CommandSpec& command, std::string_view name) {
  const auto it = std::ranges::find(command.others, name, &OtherFlag::name);
  return it == command.others.end() ? nullptr : &*it;
}

void add_unknown(const CommandSpec& command, const std::string& name, report::Problems& problems) {
  if (const OtherFlag* const other = find_other(command, name)) {
    problems.add("--" + name + " is " +
                     (other->of.empty() ? "no flag of " + command.name : "a flag of " + other->of),
                 other->use);
    return;
  }
  const std::string nearest = report::nearest_name(name, names_of(command));
  std::string hint = "atelier " + command.name + " --help lists the flags";
  if (command.lacks_family) hint += ", with --plugin also those of a family";
  if (!nearest.empty()) hint = "did you mean --" + nearest + "?";
  problems.add(display_flag(name) + " is not known to " + command.name, hint);
}

}  // namespace

std::string_view long_name(std::string_view word) {
  if (word.size() != 2 || word.front() != '-') return "";
  const auto found =
      std::ranges::find(kShortNames, word.back(), &std::pair<char, std::string_view>::first);
  return found == std::end(kShortNames) ? "" : found->second;
}

std::string short_name(std::string_view name) {
  const auto found =
      std::ranges::find(kShortNames, name, &std::pair<char, std::string_view>::second);
  return found == std::end(kShortNames) ? "" : std::string("-") + found->first;
}

const FlagSpec* find_flag(const CommandSpec& command, std::string_view name) {
  const auto it = std::ranges::find(command.flags, name, &FlagSpec::name);
  return it == command.flags.end() ? nullptr : &*it;
}

std::vector<std::string> names_of(const CommandSpec& command) {
  std::vector<std::string> names;
  for (const FlagSpec& flag : command.flags) names.push_back(flag.name);
  return names;
}

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

std::vector<int64_t> ParsedFlags::integers(std::string_view name) const {
  std::vector<int64_t> numbers;
  const auto text = find_text(name);
  if (!text) return numbers;
  for (const std::string_view part : parts_of(*text)) numbers.push_back(*parse_integer(part));
  return numbers;
}

std::vector<double> ParsedFlags::reals(std::string_view name) const {
  std::vector<double> numbers;
  const auto text = find_text(name);
  if (!text) return numbers;
  for (const std::string_view part : parts_of(*text)) numbers.push_back(*parse_real(part));
  return numbers;
}

std::vector<std::string> ParsedFlags::list(std::string_view name) const {
  return formats::parse_list(find_text(name).value_or(""));
}

ParsedFlags parse_flags(const CommandSpec& command, std::span<const std::string> arguments) {
  report::Problems problems;
  ParsedFlags parsed = parse_flags(command, arguments, {}, problems);
  problems.throw_if_any();
  return parsed;
}

// One reading of a command line: the words are told apart, their values are checked, and what the
// user left out is filled in.
class Parser {
 public:
  Parser(const CommandSpec& command, report::Problems& problems)
      : command_(command), problems_(problems) {
    for (const FlagSpec& flag : command.flags)
      parsed_.values_.emplace(flag.name, ParsedFlags::Value{});
  }

  ParsedFlags run(std::span<const std::string> arguments, std::span<const GivenValue> below) {
    split(arguments);
    take_values();
    take_below(below);
    fill_in();
    check_positional();
    return std::move(parsed_);
  }

 private:
  struct Occurrence {
    const FlagSpec& flag;
    std::string text;
  };

  // The library walks over the words; each is ours to take with its value, because values may begin
  // with dashes.
  void split(std::span<const std::string> arguments) {
    const po::options_description none;
    po::command_line_parser parser(std::vector<std::string>(arguments.begin(), arguments.end()));
    parser.options(none).extra_style_parser([this](std::vector<std::string>& words) {
      rest_ = words;
      take_word();
      words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(rest_.size()));
      return std::vector<po::option>(1);
    });
    parser.allow_unregistered().run();
  }

  const std::string& next() {
    const std::string& word = rest_.front();
    rest_ = rest_.subspan(1);
    return word;
  }

  void take_word() {
    const std::string& word = next();
    if (word == "--") {
      while (!rest_.empty()) parsed_.positional_.push_back(next());
    } else if (word.starts_with("--")) {
      take_flag(word);
    } else if (find_flag(command_, long_name(word)) != nullptr) {
      take_flag("--" + std::string(long_name(word)));
    } else if (word.size() > 1 && word.front() == '-' && !parse_real(word)) {
      const std::string nearest = report::nearest_name(word.substr(1), names_of(command_));
      problems_.add(
          quote(word) + " is no flag of " + command_.name,
          nearest.empty() ? "flags begin with two dashes" : "did you mean --" + nearest + "?");
    } else {
      parsed_.positional_.push_back(word);
    }
  }

  // One value per flag, whatever it begins with: "--cfg_scale -1". What names a flag is no value,
  // so that a forgotten value is told from the next flag.
  void take_flag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const FlagSpec* const flag = find_flag(command_, name);
    if (flag == nullptr) return refuse(name, equals == std::string::npos);
    if (equals != std::string::npos) {
      given_.push_back({*flag, word.substr(equals + 1)});
    } else if (flag->kind == FlagKind::kFlag) {
      const bool has_value =
          !rest_.empty() && parse_flag(rest_.front()) && command_.positional.empty();
      given_.push_back({*flag, has_value ? next() : "true"});
    } else if (rest_.empty() || names_flag(rest_.front())) {
      problems_.add("--" + name + ": a value is missing", "write --" + name + value_text(*flag));
    } else {
      given_.push_back({*flag, next()});
    }
  }

  bool names_flag(const std::string& word) const {
    if (find_flag(command_, long_name(word)) != nullptr) return true;
    return word.starts_with("--") && word.size() > 2 &&
           find_flag(command_, std::string_view(word).substr(2, word.find('=') - 2)) != nullptr;
  }

  // An unknown flag. Its values, if it has any, are no files of ours.
  void refuse(const std::string& name, bool may_have_values) {
    add_unknown(command_, name, problems_);
    const OtherFlag* const other = find_other(command_, name);
    if (!may_have_values || (other != nullptr && !other->has_value)) return;
    while (!rest_.empty() && !rest_.front().starts_with("--")) {
      next();
      if (other == nullptr) return;
    }
  }

  void take_values() {
    for (const auto& [flag, text] : given_) {
      ParsedFlags::Value& value = parsed_.values_.at(flag.name);
      if (!value.given || flag.repeated) {
        take(flag, text, "");
        continue;
      }
      const bool is_list = flag.kind == FlagKind::kList || flag.name == "model_paths";
      problems_.add("--" + flag.name + ": given twice",
                    is_list ? "give it once, with commas between: a,b" : "give it once");
      if (is_list && !value.texts.empty()) value.texts.back() += "," + text;  // nothing is missing
    }
  }

  void take(const FlagSpec& flag, const std::string& text, const std::string& place) {
    ParsedFlags::Value& value = parsed_.values_.at(flag.name);
    value.given = true;
    if (const std::string wrong = value_problem(flag, text); !wrong.empty()) {
      problems_.add((place.empty() ? "--" + flag.name : place) + ": " + wrong,
                    value_hint(flag, text));
      return;
    }
    value.place = place;
    value.texts.push_back(text);
  }

  void take_below(std::span<const GivenValue> below) {
    for (const FlagSpec& flag : command_.flags) {
      if (parsed_.values_.at(flag.name).given) continue;
      for (auto given = std::ranges::find(below, flag.name, &GivenValue::name);
           given != below.end();
           given = std::find_if(given + 1, below.end(), [&](const GivenValue& value) {
             return flag.repeated && value.name == flag.name;
           }))
        take(flag, given->text, given->place);
    }
  }

  void fill_in() {
    for (const FlagSpec& flag : command_.flags) {
      ParsedFlags::Value& value = parsed_.values_.at(flag.name);
      if (value.texts.empty() && flag.preset) value.texts = {*flag.preset};
      if (flag.required && !value.given) problems_.add("--" + flag.name + " is missing", flag.help);
    }
  }

  void check_positional() {
    const std::vector<std::string>& words = parsed_.positional_;
    const auto count = static_cast<int>(words.size());
    const std::string usage = "atelier " + command_.name + " " + command_.positional;
    if (command_.positional.empty() && count > 0) {
      problems_.add(quote(words.front()) + ": " + command_.name + " takes flags only",
                    "quote a value that holds spaces");
    } else if (count < command_.min_positional) {
      problems_.add(command_.positional + " is missing", usage);
    } else if (count > command_.max_positional) {
      problems_.add(quote(words[static_cast<size_t>(command_.max_positional)]) + " is one too many",
                    usage);
    }
  }

  const CommandSpec& command_;
  report::Problems& problems_;
  ParsedFlags parsed_;
  std::span<const std::string> rest_;
  std::vector<Occurrence> given_;
};

ParsedFlags parse_flags(const CommandSpec& command, std::span<const std::string> arguments,
                        std::span<const GivenValue> below, report::Problems& problems) {
  return Parser(command, problems).run(arguments, below);
}

std::optional<std::string> peek_flag(std::span<const std::string> arguments,
                                     std::string_view name) {
  const std::string flag = "--" + std::string(name);
  std::optional<std::string> found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--") break;
    if ((arguments[i] == flag || long_name(arguments[i]) == name) && i + 1 < arguments.size())
      found = arguments[i + 1];
    if (arguments[i].starts_with(flag + "=")) found = arguments[i].substr(flag.size() + 1);
  }
  return found;
}

bool wants_help(std::span<const std::string> arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& text) { return text == "--help" || text == "-h"; });
}

}  // namespace atelier::flags
