#include "prompt.h"

#include <algorithm>
#include <string>

#include "atelier/error.h"

namespace qwen_image {

using atelier::Error;
using atelier::ErrorCode;

namespace {

constexpr std::string_view kImageSystem =
    "Describe the image by detailing the color, shape, size, texture, quantity, text, "
    "spatial relationships of the objects and background:";
constexpr std::string_view kEditSystem =
    "Describe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. "
    "Generate a new image that meets the user's requirements while maintaining consistency with "
    "the original input where appropriate.";
constexpr std::string_view kPicture = "<|vision_start|><|image_pad|><|vision_end|>";
constexpr std::string_view kAfter = "<|im_end|>\n<|im_start|>assistant\n";

// The template before the user's words.
std::string before(Wording wording) {
  std::string text = "<|im_start|>system\n";
  text.append(wording == Wording::kImage ? kImageSystem : kEditSystem);
  return text.append("<|im_end|>\n<|im_start|>user\n");
}

}  // namespace

// With the published tokenizer the beginning alone has 34 tokens, and of pictures 64.
PromptTemplate::PromptTemplate(const atelier::text::Tokenizer& tokenizer, Wording wording)
    : tokenizer_(tokenizer),
      wording_(wording),
      skip_(std::ssize(tokenizer.encode(before(wording)))) {}

std::vector<int64_t> PromptTemplate::tokens(std::string_view prompt, int64_t pictures) const {
  std::vector<std::string_view> marks = {"<|im_start|>", "<|im_end|>"};
  if (pictures > 0)
    marks.insert(marks.end(), {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"});
  for (const std::string_view mark : marks) {
    if (!tokenizer_.id(mark)) {
      throw Error(ErrorCode::kInvalidArgument, "the tokenizer has no token " + std::string(mark),
                  "pass the tokenizer folder that is published with the model");
    }
  }
  // The whole text at once: a prompt that begins with a line break shares a token with the
  // template.
  std::string whole = before(wording_);
  for (int64_t i = 1; i <= pictures; ++i) {
    if (wording_ == Wording::kPictures) whole.append("Picture " + std::to_string(i) + ": ");
    whole.append(kPicture);
  }
  whole.append(prompt.empty() ? " " : prompt).append(kAfter);
  return tokenizer_.encode(whole);
}

std::vector<int64_t> spread_pictures(std::vector<int64_t>& ids, int64_t picture_token,
                                     const std::vector<int64_t>& tokens_of_each) {
  std::vector<int64_t> spread, starts;
  for (const int64_t id : ids) {
    const size_t picture = starts.size();
    const bool is_picture = id == picture_token && picture < tokens_of_each.size();
    if (is_picture) starts.push_back(std::ssize(spread));
    spread.insert(spread.end(), is_picture ? static_cast<size_t>(tokens_of_each[picture]) : 1, id);
  }
  ids = std::move(spread);
  return starts;
}

}  // namespace qwen_image
