#include "prompt.h"

#include "atelier/error.h"
#include "atelier/text/repair.h"

namespace wan {

namespace text = atelier::text;

constexpr int64_t kEndToken =
    1;  // of umT5; the tokenizer of the text tower beside CLIP has another

std::string clean_prompt(std::string_view prompt) {
  return text::collapse_spaces(text::unescape_html(text::unescape_html(text::fix_text(prompt))));
}

int64_t end_token(const text::Tokenizer& tokenizer) {
  const std::optional<int64_t> end = tokenizer.id("</s>");
  if (end != kEndToken) {
    throw atelier::Error(atelier::ErrorCode::kInvalidArgument,
                         "the tokenizer is another model's: its token 1 is not </s>",
                         "pass the folder tokenizer/ or google/umt5-xxl/ of the model");
  }
  return kEndToken;
}

std::vector<int64_t> prompt_ids(const text::Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<int64_t> ids = tokenizer.encode(clean_prompt(prompt));
  ids.push_back(end_token(tokenizer));
  return ids;
}

}  // namespace wan
