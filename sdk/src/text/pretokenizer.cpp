#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <algorithm>
#include <array>
#include <pcre2.h>
#include <string>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/utf8.h"
#include "text/unicode.h"

namespace atelier::text {

const std::string_view SplitPattern::kByteLevel =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view SplitPattern::kSingleDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

// As published. All of them match somewhere in every text, and take linear time.
constexpr std::string_view kThreeDigits =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kMarksWithLetters =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLetterCase =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Code points that Unicode 15.0 to 16.0 added to a category, which PCRE2 10.42 does not know yet.
#define ATELIER_NEW_LU R"(\x{1C89}\x{A7CB}\x{A7CC}\x{A7DA}\x{A7DC}\x{10D50}-\x{10D65})"
#define ATELIER_NEW_LL R"(\x{1C8A}\x{A7CD}\x{A7DB}\x{10D70}-\x{10D85}\x{1DF25}-\x{1DF2A})"
#define ATELIER_NEW_LM \
  R"(\x{10D4E}\x{10D6F}\x{16D40}-\x{16D42}\x{16D6B}\x{16D6C}\x{1E030}-\x{1E06D}\x{1E4EB})"
#define ATELIER_NEW_LO                                                                       \
  R"(\x{105C0}-\x{105F3}\x{10D4A}-\x{10D4D}\x{10D4F}\x{10EC2}-\x{10EC4}\x{1123F}\x{11240})"  \
  R"(\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"   \
  R"(\x{11BC0}-\x{11BE0}\x{11F02}\x{11F04}-\x{11F10}\x{11F12}-\x{11F33}\x{1342F})"           \
  R"(\x{13441}-\x{13446}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D43}-\x{16D6A}\x{18CFF})" \
  R"(\x{1B132}\x{1B155}\x{1E4D0}-\x{1E4EA}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2B739})"            \
  R"(\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})"

// What a published pattern's class is called in PCRE2, without the brackets around it.
struct CharClass {
  std::string_view name;
  std::string_view members;
};
constexpr std::array<CharClass, 8> kClasses = {{
    // PCRE2's own \s holds U+180E, which is no white space since Unicode 6.3.
    {R"(\s)", R"(\x09-\x0D\x{85}\p{Z})"},
    {R"(\p{L})", R"(\p{L})" ATELIER_NEW_LU ATELIER_NEW_LL ATELIER_NEW_LM ATELIER_NEW_LO},
    {R"(\p{Lu})", R"(\p{Lu})" ATELIER_NEW_LU},
    {R"(\p{Ll})", R"(\p{Ll})" ATELIER_NEW_LL},
    {R"(\p{Lm})", R"(\p{Lm})" ATELIER_NEW_LM},
    {R"(\p{Lo})", R"(\p{Lo})" ATELIER_NEW_LO},
    {R"(\p{N})",
     R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11F50}-\x{11F59})"
     R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
     R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA})"},
    {R"(\p{M})",
     R"(\p{M}\x{897}\x{CF3}\x{ECE}\x{10D69}-\x{10D6D}\x{10EFC}-\x{10EFF}\x{11241})"
     R"(\x{113B8}-\x{113C0}\x{113C2}\x{113C5}\x{113C7}-\x{113CA}\x{113CC}-\x{113D0}\x{113D2})"
     R"(\x{113E1}\x{113E2}\x{11F00}\x{11F01}\x{11F03}\x{11F34}-\x{11F3A}\x{11F3E}-\x{11F42})"
     R"(\x{11F5A}\x{13440}\x{13447}-\x{13455}\x{1611E}-\x{1612F}\x{1E08F}\x{1E4EC}-\x{1E4EF})"
     R"(\x{1E5EE}\x{1E5EF})"},
}};
#undef ATELIER_NEW_LU
#undef ATELIER_NEW_LL
#undef ATELIER_NEW_LM
#undef ATELIER_NEW_LO

// Writes a known pattern as one of PCRE2 with the same matches.
std::string to_pcre2(std::string_view published) {
  std::string pattern;
  bool in_brackets = false;
  while (!published.empty()) {
    const auto is_next = [&](const CharClass& c) { return published.starts_with(c.name); };
    const auto known = std::find_if(kClasses.begin(), kClasses.end(), is_next);
    size_t length = 1;
    if (known != kClasses.end()) {
      length = known->name.size();
      if (!in_brackets) pattern += '[';
      pattern += known->members;
      if (!in_brackets) pattern += ']';
    } else if (published.starts_with(R"(\S)")) {
      length = 2;
      pattern += "[^" + std::string(kClasses[0].members) + "]";
    } else {
      if (published[0] == '\\') length = 2;
      if (published[0] == '[') in_brackets = true;
      if (published[0] == ']') in_brackets = false;
      pattern += published.substr(0, length);
    }
    published.remove_prefix(length);
  }
  return pattern;
}

struct Deleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

[[noreturn]] void fail(int code) {
  std::array<PCRE2_UCHAR, 256> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  throw Error(ErrorCode::kInternal,
              std::string("split pattern: ") + reinterpret_cast<const char*>(message.data()));
}

std::shared_ptr<const pcre2_code> compile(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (code == nullptr) fail(error);
  std::shared_ptr<const pcre2_code> owner(code, [code](const void*) { pcre2_code_free(code); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where it cannot, pcre2_match() interprets
  return owner;
}

}  // namespace

SplitPattern::SplitPattern(std::string_view pattern) {
  for (const std::string_view known :
       {kByteLevel, kSingleDigits, kThreeDigits, kMarksWithLetters, kLetterCase}) {
    if (pattern == known) code_ = compile(to_pcre2(known));
  }
  if (code_ == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "pre_tokenizer: unknown split pattern " + formats::quote_and_escape(pattern, 400),
                "only tokenizers with a published pattern that is known here can be read",
                "TOK_PATTERN");
  }
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& parts) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, Deleter> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, Deleter> context(pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) {
    throw Error(ErrorCode::kOutOfMemory, "split pattern: no memory to match");
  }
  // The known patterns step back over each character a few times at most.
  const uint64_t limit = 1'000'000 + 16 * uint64_t{text.size()};
  pcre2_set_match_limit(context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));

  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t done = 0; done < text.size();) {
    const auto match = [&](uint32_t options) {
      return pcre2_match(code, subject, text.size(), done, PCRE2_NO_UTF_CHECK | options, data.get(),
                         context.get());
    };
    int found = match(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = match(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) {
      parts.push_back(text.substr(done));
      return;
    }
    if (found < 0) fail(found);
    const size_t begin = pcre2_get_ovector_pointer(data.get())[0];
    const size_t end = pcre2_get_ovector_pointer(data.get())[1];
    if (end <= begin) fail(PCRE2_ERROR_INTERNAL);
    if (done < begin) parts.push_back(text.substr(done, begin - done));
    parts.push_back(text.substr(begin, end - begin));
    done = end;
  }
}

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(
      ErrorCode::kUnsupported, "pre_tokenizer: " + message,
      "splits by known patterns and then ByteLevel can be read, or splits behind a text or at "
      "white space and then Metaspace",
      "TOK_KIND");
}

std::string step_name(size_t place, const formats::PreTokenizerStep& step) {
  return "step " + std::to_string(place + 1) + " is " + formats::quote_and_escape(step.type, 40);
}

std::string behavior_name(const formats::PreTokenizerStep& step) {
  return "split with behavior " + formats::quote_and_escape(step.behavior, 40) +
         (step.is_inverted ? ", inverted" : "");
}

// Cuts behind each `end`. One that follows another, or begins the text, is a word of its own.
void split_behind(std::string_view text, std::string_view end,
                  std::vector<std::string_view>& parts) {
  while (!text.empty()) {
    const size_t found = text.find(end);
    const size_t length = found == std::string_view::npos ? text.size() : found + end.size();
    parts.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
}

// Takes white space out, and appends what is between.
void split_at_spaces(std::string_view text, std::vector<std::string_view>& parts) {
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const formats::Utf8Char c = formats::decode_utf8(text, at);
    if (is_space(c.code_point)) {
      if (begin < at) parts.push_back(text.substr(begin, at - begin));
      begin = at + c.length;
    }
    at += c.length;
  }
  if (begin < text.size()) parts.push_back(text.substr(begin));
}

}  // namespace

Pretokenizer::Pretokenizer(const std::vector<formats::PreTokenizerStep>& steps)
    : is_byte_level_(!steps.empty() && steps.back().type == "ByteLevel") {
  if (is_byte_level_) {
    read_byte_level(steps);
  } else {
    read_literal(steps);
  }
}

void Pretokenizer::read_literal(const std::vector<formats::PreTokenizerStep>& steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const formats::PreTokenizerStep& step = steps[i];
    if (step.type == "WhitespaceSplit") {
      ends_.emplace_back();
      continue;
    }
    if (step.type == "Metaspace" && i + 1 == steps.size()) {
      read_metaspace(step);
      continue;
    }
    if (step.type != "Split") refuse(step_name(i, step) + ", without ByteLevel at the end");
    if (step.behavior != "MergedWithPrevious" || step.is_inverted) refuse(behavior_name(step));
    if (step.pattern_is_regex || step.pattern.empty()) {
      refuse("split at the pattern " + formats::quote_and_escape(step.pattern, 400) +
             ", without ByteLevel at the end");
    }
    ends_.push_back(step.pattern);
  }
}

void Pretokenizer::read_metaspace(const formats::PreTokenizerStep& step) {
  metaspace_ = {step.replacement, Prepend::kAlways, step.splits};
  if (step.prepend_scheme == "never") {
    metaspace_->prepend = Prepend::kNever;
  } else if (step.prepend_scheme == "first" && ends_.empty()) {
    metaspace_->prepend = Prepend::kFirst;
  } else if (step.prepend_scheme != "always") {
    refuse("Metaspace with prepend_scheme " + formats::quote_and_escape(step.prepend_scheme, 40) +
           (ends_.empty() ? "" : " behind a split"));
  }
}

void Pretokenizer::read_byte_level(const std::vector<formats::PreTokenizerStep>& steps) {
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    const formats::PreTokenizerStep& step = steps[i];
    if (step.type != "Split") refuse(step_name(i, step));
    // Known patterns leave nothing between two matches, so that these two are the same.
    const bool keeps_matches = (step.behavior == "Isolated" && !step.is_inverted) ||
                               (step.behavior == "Removed" && step.is_inverted);
    if (!keeps_matches) refuse(behavior_name(step));
    if (!step.pattern_is_regex) {
      refuse("split at the text " + formats::quote_and_escape(step.pattern, 400));
    }
    splits_.emplace_back(step.pattern);
  }
  add_prefix_space_ = steps.back().add_prefix_space;
  if (steps.back().use_regex) last_split_.emplace_back(SplitPattern::kByteLevel);
}

// What the splits make of a text.
std::vector<std::string_view> Pretokenizer::cut(std::string_view text) const {
  std::vector<std::string_view> parts{text}, finer;
  const auto split_all = [&](const auto& split) {
    finer.clear();
    for (const std::string_view part : parts) split(part);
    parts.swap(finer);
  };
  for (const std::string& end : ends_) {
    split_all([&](std::string_view part) {
      end.empty() ? split_at_spaces(part, finer) : split_behind(part, end, finer);
    });
  }
  for (const SplitPattern& pattern : splits_)
    split_all([&](std::string_view part) { pattern.split(part, finer); });
  return parts;
}

void Pretokenizer::for_each_spaced_word(const std::vector<std::string_view>& parts,
                                        bool begins_text,
                                        const std::function<void(std::string_view)>& use) const {
  const auto& [replacement, prepend, splits] = *metaspace_;
  const bool prepends = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && begins_text);
  std::string spaced;
  for (const std::string_view part : parts) {
    spaced.clear();
    if (prepends && !part.starts_with(' ') && !part.starts_with(replacement)) spaced = replacement;
    for (const char c : part) {
      if (c == ' ') {
        spaced += replacement;
      } else {
        spaced += c;
      }
    }
    for (std::string_view rest = spaced; !rest.empty();) {
      const size_t end = splits ? rest.find(replacement, 1) : std::string::npos;
      use(rest.substr(0, end));
      rest.remove_prefix(std::min(end, rest.size()));
    }
  }
}

void Pretokenizer::for_each_word(std::string_view text, bool begins_text,
                                 const std::function<void(std::string_view)>& use) const {
  if (text.empty()) return;
  const std::vector<std::string_view> parts = cut(text);
  if (metaspace_) return for_each_spaced_word(parts, begins_text, use);
  std::string spaced;
  std::vector<std::string_view> words;
  for (std::string_view part : parts) {
    if (add_prefix_space_ && !part.starts_with(' ')) {
      spaced.assign(" ");
      spaced += part;
      part = spaced;
    }
    words.clear();
    if (last_split_.empty()) words.push_back(part);
    for (const SplitPattern& pattern : last_split_) pattern.split(part, words);
    for (const std::string_view word : words) use(word);
  }
}

}  // namespace atelier::text
