// Prompts as the text encoder was trained to read them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atelier/text/tokenizer.h"

namespace wan {

inline constexpr int64_t kMaxPromptTokens = 512;  // the end token among them

// The text that is encoded: wrong encodings, references of HTML, wide forms, curly quotes and white
// space are made plain, as the published pipelines do it.
std::string clean_prompt(std::string_view prompt);

// What stands behind the tokens of every prompt: where they are cut, it takes the place of the
// last. Throws Error{kInvalidArgument} when it is not umT5's.
int64_t end_token(const atelier::text::Tokenizer& tokenizer);

// The tokens of a prompt, cleaned, and the end token; not cut.
std::vector<int64_t> prompt_ids(const atelier::text::Tokenizer& tokenizer, std::string_view prompt);

}  // namespace wan
