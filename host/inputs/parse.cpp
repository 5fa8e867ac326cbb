#include "host/inputs/parse.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <cmath>
#include <optional>

#include <ATen/ATen.h>

#include "formats/escape.h"
#include "formats/glob.h"
#include "formats/json.h"
#include "formats/list.h"
#include "host/report/problems.h"

namespace atelier::inputs {
namespace {

using nlohmann::json;

constexpr size_t kMaxChars = 80;  // of a value that a message shows

[[noreturn]] void refuse(const std::string& what, const char* hint, std::string tag = {}) {
  throw Error(ErrorCode::kInvalidArgument, what, hint, std::move(tag));
}

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

json parse_integer(const json& given) {
  if (given.is_string()) {
    if (const auto number = parse_number<int64_t>(given.get_ref<const std::string&>()))
      return *number;
  }
  const bool fits = given.is_number_integer() &&
                    !(given.is_number_unsigned() && given.get<uint64_t>() > uint64_t{INT64_MAX});
  if (!fits) refuse(shown(given) + " is no whole number", "write for instance 4");
  return given;
}

json parse_real(const json& given) {
  std::optional<double> number;
  if (given.is_number()) number = given.get<double>();
  if (given.is_string()) number = parse_number<double>(given.get_ref<const std::string&>());
  if (!number || !std::isfinite(*number))
    refuse(shown(given) + " is no number", "write for instance 0.5");
  return *number;
}

json parse_flag(const json& given) {
  if (given.is_boolean()) return given;
  std::string text = given.is_string() ? given.get<std::string>() : "";
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  if (text == "true" || text == "1") return true;
  if (text == "false" || text == "0") return false;
  refuse(shown(given) + " is no truth value", "write true or false");
}

// What one number of a list is parsed with.
json parse_number_of(InputKind kind, const json& given) {
  return kind == InputKind::kInteger ? parse_integer(given) : parse_real(given);
}

// The numbers of "1,2,3" or of a JSON list.
json split_numbers(const std::string& text) {
  try {
    return text.starts_with('[') ? formats::parse_json(text) : json(formats::parse_list(text));
  } catch (const formats::ParseError& error) {
    refuse(shown(text) + " is no list of numbers: " + error.what(), "write for instance 1,2,3",
           error.tag);
  }
}

// Numbers, or texts of them as repeated flags are, each of which may hold several.
json parse_numbers(InputKind kind, const json& given) {
  json numbers = json::array();
  for (const json& one : given.is_array() ? given : json::array({given})) {
    const bool is_text = one.is_string();
    for (const json& number :
         is_text ? split_numbers(one.get_ref<const std::string&>()) : json::array({one}))
      numbers.push_back(parse_number_of(kind, number));
  }
  return numbers;
}

// One text, or a JSON list of them, which the cell of a csv holds as text.
std::vector<std::string> parse_texts(const json& given, const std::string& noun) {
  json list = given;
  if (given.is_string()) {
    const std::string& text = given.get_ref<const std::string&>();
    if (!text.starts_with('[') || !text.ends_with(']')) return {text};
    try {
      list = formats::parse_json(text);
    } catch (const formats::ParseError& error) {
      refuse(shown(given) + " is no list of " + noun + "s: " + error.what(),
             "write for instance [\"a.png\", \"b.png\"]", error.tag);
    }
  }
  if (!list.is_array() || !std::ranges::all_of(list, [](const json& e) { return e.is_string(); }))
    refuse(shown(given) + " is no " + noun + " and no list of " + noun + "s",
           "write for instance \"a.png\"");
  return list.get<std::vector<std::string>>();
}

// "1 file", "2 texts".
std::string counted(const InputSpec& input, int64_t number) {
  const bool is_number = input.kind == InputKind::kInteger || input.kind == InputKind::kReal;
  const char* noun = is_file(input.kind) ? " file" : is_number ? " number" : " text";
  return std::to_string(number) + noun + (number == 1 ? "" : "s");
}

void check_count(const InputSpec& input, size_t count) {
  const auto number = static_cast<int64_t>(count);
  if (number >= input.min_count && number <= input.max_count) return;
  const bool is_few = number < input.min_count;
  const int64_t bound = is_few ? input.min_count : input.max_count;
  std::string expected = bound == 1 ? "one" : std::to_string(bound);
  if (is_list(input)) expected = (is_few ? "at least " : "at most ") + expected;
  refuse(counted(input, number) + (number == 1 ? " is given, " : " are given, ") + expected +
             (bound == 1 ? " is expected" : " are expected"),
         is_few ? "name more" : "leave some out");
}

void check_choice(const InputSpec& input, const std::string& text) {
  if (input.choices.empty() || std::ranges::find(input.choices, text) != input.choices.end())
    return;
  const std::vector<std::string> known(input.choices.begin(), input.choices.end());
  const std::string nearest = report::nearest_name(text, known);
  throw Error(ErrorCode::kInvalidArgument,
              shown(text) + " is not one of " + report::list_names(known),
              nearest.empty() ? "use one of these" : "did you mean " + nearest + "?");
}

// Among others a text that says nothing is one that was forgotten.
void check_words(const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool is_blank = texts[i].find_first_not_of(" \t\r\n") == std::string::npos;
    if (is_blank)
      refuse("text " + std::to_string(i + 1) + " is empty", "write it, or leave it out");
  }
}

void check_path(const std::string& path) {
  const auto fail = [&](const char* what, const char* hint) {
    refuse(formats::quote_and_escape(path, kMaxChars) + " " + what, hint);
  };
  if (path.empty()) fail("is an empty path", "name a file");
  if (path.find('\0') != std::string::npos) fail("holds a NUL byte", "name a file");
  if (path.size() >= PATH_MAX) fail("is too long for a path", "name a file");
  if (path.starts_with("http://") || path.starts_with("https://"))
    fail("is a web address", "download the file and name it by its path");
}

// What each kind of value adds to a hash.
void add(files::ContentHash& hash, const std::string& text) {
  hash.add(std::string_view(text));
}
void add(files::ContentHash& hash, const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous();
  hash.add(c10::str(bytes.scalar_type(), bytes.sizes()))
      .add(bytes.const_data_ptr(), bytes.nbytes());
}
void add(files::ContentHash& hash, int64_t number) {
  hash.add(number);
}
void add(files::ContentHash& hash, double number) {
  hash.add(&number, sizeof number);
}
void add(files::ContentHash& hash, bool flag) {
  hash.add(int64_t{flag});
}
template <typename T>
void add(files::ContentHash& hash, const std::vector<T>& list) {
  hash.add(static_cast<int64_t>(list.size()));
  for (const T& value : list) add(hash, value);
}

}  // namespace

bool is_file(InputKind kind) {
  return is_image(kind) || is_clip(kind) || is_sound(kind);
}

bool is_image(InputKind kind) {
  return kind == InputKind::kImage || kind == InputKind::kMask;
}

bool is_clip(InputKind kind) {
  return kind == InputKind::kVideo || kind == InputKind::kVideoMask;
}

bool is_sound(InputKind kind) {
  return kind == InputKind::kAudio;
}

bool is_mask(InputKind kind) {
  return kind == InputKind::kMask || kind == InputKind::kVideoMask;
}

std::string kind_name(const InputSpec& input) {
  // In the order of InputKind.
  constexpr std::string_view kNames[] = {"text",  "image",   "video", "mask", "video mask",
                                         "audio", "integer", "real",  "flag"};
  return std::string(kNames[static_cast<size_t>(input.kind)]) + (is_list(input) ? "s" : "");
}

bool is_list(const InputSpec& input) {
  return input.max_count != 1;
}

bool holds_for(const InputSpec& input, std::string_view variant) {
  return formats::any_glob_matches(input.variants, variant);
}

bool is_required(const InputSpec& input, std::string_view variant) {
  return input.required && holds_for(input, variant) &&
         formats::any_glob_matches(input.required_by, variant);
}

Error not_taken(const InputSpec& input, std::string_view variant) {
  const std::string wanted = formats::quote_and_escape(input.variants);
  if (variant.empty())
    return {ErrorCode::kInvalidArgument, "only the variant " + wanted + " takes it",
            "give the denoiser's files, which say what it is"};
  return {
      ErrorCode::kInvalidArgument,
      "the variant " + formats::quote_and_escape(variant) + " does not take it",
      "leave it out; it is for " + wanted + " (--model_hints says which variant the files are)"};
}

std::string shown(const json& value) {
  if (value.is_string())
    return formats::quote_and_escape(value.get_ref<const std::string&>(), kMaxChars);
  const std::string text =
      value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kMaxChars ? text : text.substr(0, kMaxChars) + "…";
}

json parse_value(const InputSpec& input, const json& given) {
  if (input.kind == InputKind::kFlag) return parse_flag(given);
  if (input.kind == InputKind::kInteger || input.kind == InputKind::kReal) {
    if (!is_list(input)) return parse_number_of(input.kind, given);
    json numbers = parse_numbers(input.kind, given);
    check_count(input, numbers.size());
    return numbers;
  }
  const bool is_path = is_file(input.kind);
  if (!is_path && !is_list(input)) {
    if (!given.is_string()) refuse(shown(given) + " is no text", "put it in double quotes");
    check_choice(input, given.get_ref<const std::string&>());
    return given;
  }
  const std::vector<std::string> texts = parse_texts(given, is_path ? "path" : "text");
  check_count(input, texts.size());
  for (const std::string& text : texts) is_path ? check_path(text) : check_choice(input, text);
  if (!is_path) check_words(texts);
  return is_list(input) ? json(texts) : json(texts.front());
}

std::vector<std::string> texts_of(const json& value) {
  if (value.is_string()) return {value.get<std::string>()};
  return value.get<std::vector<std::string>>();
}

std::vector<std::pair<const InputSpec*, Error>> unpaired(std::span<const InputSpec> inputs,
                                                         const ValueOf& value_of) {
  std::vector<std::pair<const InputSpec*, Error>> wrong;
  const auto count_of = [&](std::string_view name) -> int64_t {
    const json* value = value_of(name);
    if (value == nullptr) return 0;
    return value->is_array() ? std::ssize(*value) : 1;
  };
  for (const InputSpec& input : inputs) {
    const auto other = std::ranges::find(inputs, input.paired_with, &InputSpec::name);
    if (input.paired_with.empty() || other == inputs.end()) continue;
    const int64_t own = count_of(input.name), others = count_of(other->name);
    if (own == 0 || own == others) continue;
    // Where both need each other, one of them says it.
    const bool is_told = std::ranges::find(wrong, &*other, [](const auto& told) {
                           return told.first;
                         }) != wrong.end();
    if (is_told && other->paired_with == input.name) continue;
    const std::string name(other->name);
    wrong.emplace_back(
        &input, Error(ErrorCode::kInvalidArgument,
                      counted(input, own) + (own == 1 ? " is given, and " : " are given, and ") +
                          (others == 0 ? "none" : std::to_string(others)) + " of " + name,
                      "give as many of both"));
  }
  return wrong;
}

InputValue to_input(const InputSpec& input, const json& value) {
  if (input.kind == InputKind::kInteger) {
    if (is_list(input)) return value.get<std::vector<int64_t>>();
    return value.get<int64_t>();
  }
  if (input.kind == InputKind::kReal) {
    if (is_list(input)) return value.get<std::vector<double>>();
    return value.get<double>();
  }
  if (input.kind == InputKind::kFlag) return value.get<bool>();
  if (is_list(input)) return texts_of(value);
  return value.get<std::string>();
}

void add_value(files::ContentHash& hash, const json& value) {
  hash.add(std::string_view(value.type_name()));
  hash.add(value.is_string() ? value.get_ref<const std::string&>()
                             : value.dump(-1, ' ', false, json::error_handler_t::replace));
}

std::string content_of(const Inputs& values) {
  files::ContentHash hash;
  for (const auto& [name, value] : values) {
    hash.add(std::string_view(name)).add(static_cast<int64_t>(value.index()));
    std::visit([&](const auto& content) { add(hash, content); }, value);
  }
  return hash.hex();
}

}  // namespace atelier::inputs
