#include "text/normalizer.h"

#include <algorithm>
#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "formats/utf8.h"
#include "text/unicode.h"

namespace atelier::text {
namespace {

// The one regular expression that is known.
constexpr std::string_view kSeveralSpaces = " {2,}";

std::string replace_all(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string result;
  for (size_t at = 0;;) {
    const size_t found = text.find(pattern, at);
    result += text.substr(at, found - at);
    if (found == std::string_view::npos) return result;
    result += content;
    at = found + pattern.size();
  }
}

// Replaces two spaces and more that follow each other by one `content`.
std::string replace_spaces(std::string_view text, std::string_view content) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end > at + 1) {
      result += content;
      at = end;
    } else {
      result += text[at++];
    }
  }
  return result;
}

// As Hugging Face's tokenizers read compiled rules: a cluster of fewer than 6 bytes becomes whole
// what its shortest beginning becomes, and clusters without a rule are replaced by characters.
std::string replace_by(const formats::CharsMap& rules, std::string_view text) {
  constexpr size_t kMaxBytes = 5;
  std::string result;
  while (!text.empty()) {
    std::string_view cluster = text.substr(0, grapheme_length(text));
    text.remove_prefix(cluster.size());
    if (cluster.size() <= kMaxBytes) {
      if (const auto rule = rules.shortest_match(cluster)) {
        result += rule->replacement;
        continue;
      }
    }
    while (!cluster.empty()) {
      const std::string_view c = cluster.substr(0, formats::decode_utf8(cluster, 0).length);
      const auto rule = rules.shortest_match(c);
      result += rule ? rule->replacement : c;
      cluster.remove_prefix(c.size());
    }
  }
  return result;
}

void strip(std::string& text, const formats::NormalizerStep& step) {
  size_t begin = 0, end = text.size();
  while (step.strips_left && begin < end) {
    const formats::Utf8Char c = formats::decode_utf8(text, begin);
    if (!is_space(c.code_point)) break;
    begin += c.length;
  }
  while (step.strips_right && begin < end) {
    size_t last = end - 1;
    while ((static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
    if (!is_space(formats::decode_utf8(text, last).code_point)) break;
    end = last;
  }
  text = text.substr(begin, end - begin);
}

}  // namespace

Normalizer::Normalizer(std::vector<formats::NormalizerStep> steps) : steps_(std::move(steps)) {
  for (const formats::NormalizerStep& step : steps_) {
    const bool is_known_pattern =
        step.pattern_is_regex ? step.pattern == kSeveralSpaces : !step.pattern.empty();
    const bool is_known = step.type == "NFC" || step.type == "Prepend" ||
                          step.type == "Precompiled" || step.type == "Strip" ||
                          (step.type == "Replace" && is_known_pattern);
    if (is_known) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "normalizer: " + formats::quote_and_escape(step.type, 40) +
            (step.type == "Replace" ? " of a regular expression" : "") + " is not supported",
        "NFC, Precompiled, Strip, Replace of a text, Prepend, or none can be read", "TOK_KIND");
  }
}

bool Normalizer::strips_left() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const formats::NormalizerStep& step) { return step.strips_left; });
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string result(text);
  for (const formats::NormalizerStep& step : steps_) {
    if (step.type == "NFC") {
      result = to_nfc(result);
    } else if (step.type == "Precompiled") {
      result = replace_by(step.chars_map, result);
    } else if (step.type == "Strip") {
      strip(result, step);
    } else if (step.type == "Replace") {
      result = step.pattern_is_regex ? replace_spaces(result, step.content)
                                     : replace_all(result, step.pattern, step.content);
    } else if (!result.empty()) {
      result.insert(0, step.content);
    }
  }
  return result;
}

}  // namespace atelier::text
