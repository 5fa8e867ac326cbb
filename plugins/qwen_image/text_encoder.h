// The language model that reads the prompt, and the template around it. Its vision tower and its
// head are not used.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"
#include "atelier/text/tokenizer.h"

#include "config.h"

namespace qwen_image {

class TextLayer;

class TextEncoder final : public atelier::TextEncoder {
 public:
  explicit TextEncoder(const TextEncoderConfig& config);
  ~TextEncoder() override;

  // Behind the last norm.
  at::Tensor forward(const at::Tensor& ids_N, const atelier::Segments& rows,
                     atelier::BlockRunner& runner) override;

  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t width() const override { return config_.width; }

 private:
  TextEncoderConfig config_;
  atelier::nn::Embedding embed_tokens_;
  std::vector<std::unique_ptr<TextLayer>> layers_;
  atelier::nn::RMSNorm norm_;
};

inline constexpr int64_t kLongestPrompt = 1024;  // tokens behind the template's beginning

// The text-to-image template, with prompts in it. Immutable, and safe to use from several threads.
class PromptTemplate {
 public:
  explicit PromptTemplate(const atelier::text::Tokenizer& tokenizer);  // outlives this

  // Tokens of the template before the prompt, whose embeddings are dropped.
  int64_t skip() const { return skip_; }
  // The tokens of the whole template; an empty prompt stands for one space. Throws
  // Error{kInvalidArgument} when the tokenizer lacks the template's marks.
  std::vector<int64_t> tokens(std::string_view prompt) const;

 private:
  const atelier::text::Tokenizer& tokenizer_;
  int64_t skip_;
};

}  // namespace qwen_image
