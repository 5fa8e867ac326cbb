// The templates around prompts, and the tokens of both.
#pragma once

#include <string_view>
#include <vector>

#include "atelier/text/tokenizer.h"

namespace qwen_image {

inline constexpr int64_t kLongestPrompt = 1024;  // tokens behind the template's beginning

// What a variant tells the language model.
enum class Wording {
  kImage,     // a text describes an image
  kPicture,   // a text says how one picture is changed
  kPictures,  // the same of pictures that are counted: "Picture 1: …"
};

// One variant's template, with prompts in it. Immutable, and safe to use from several threads.
class PromptTemplate {
 public:
  PromptTemplate(const atelier::text::Tokenizer& tokenizer, Wording wording);  // outlives this

  Wording wording() const { return wording_; }
  // Tokens of the template before the prompt, whose embeddings are dropped.
  int64_t skip() const { return skip_; }
  // The tokens of the whole template; an empty prompt stands for one space. Of `pictures` pictures
  // each is one token, <|image_pad|>. Throws Error{kInvalidArgument} when the tokenizer lacks the
  // template's marks.
  std::vector<int64_t> tokens(std::string_view prompt, int64_t pictures = 0) const;

 private:
  const atelier::text::Tokenizer& tokenizer_;
  Wording wording_;
  int64_t skip_;
};

// Places of the first `count` pictures among tokens; each becomes as many tokens as it has.
// Returns where each begins.
std::vector<int64_t> spread_pictures(std::vector<int64_t>& ids, int64_t picture_token,
                                     const std::vector<int64_t>& tokens_of_each);

}  // namespace qwen_image
