#include "text/normalizer.h"

#include <utility>

#include "atelier/error.h"

#include "formats/escape.h"
#include "text/unicode.h"

namespace atelier::text {
namespace {

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

}  // namespace

Normalizer::Normalizer(std::vector<formats::NormalizerStep> steps) : steps_(std::move(steps)) {
  for (const formats::NormalizerStep& step : steps_) {
    const bool is_known =
        step.type == "NFC" || step.type == "Prepend" ||
        (step.type == "Replace" && !step.pattern_is_regex && !step.pattern.empty());
    if (is_known) continue;
    throw Error(ErrorCode::kUnsupported,
                "normalizer: " + formats::quote_and_escape(step.type, 40) +
                    (step.type == "Replace" ? " of a regular expression" : "") +
                    " is not supported",
                "NFC, Replace of a text, Prepend, or none can be read", "TOK_KIND");
  }
}

std::string Normalizer::operator()(std::string_view text) const {
  std::string result(text);
  for (const formats::NormalizerStep& step : steps_) {
    if (step.type == "NFC") {
      result = to_nfc(result);
    } else if (step.type == "Replace") {
      result = replace_all(result, step.pattern, step.content);
    } else if (!result.empty()) {
      result.insert(0, step.content);
    }
  }
  return result;
}

}  // namespace atelier::text
