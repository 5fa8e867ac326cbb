// The language model that reads the prompt, and the template around it. Its vision tower and its
// head are not used.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"
#include "atelier/segments.h"
#include "atelier/text/tokenizer.h"

#include "config.h"

namespace qwen_image {

class TextLayer;

class TextEncoder final : public atelier::nn::Module {
 public:
  explicit TextEncoder(const TextEncoderConfig& config);
  ~TextEncoder() override;

  // ids: int64 [N], samples packed by `rows`. Returns [N, D], behind the last norm, in compute
  // dtype.
  at::Tensor forward(const at::Tensor& ids_N, const atelier::Segments& rows,
                     atelier::BlockRunner& runner);

  std::vector<atelier::Block*> blocks();
  const TextEncoderConfig& config() const { return config_; }

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
  explicit PromptTemplate(std::shared_ptr<const atelier::text::Tokenizer> tokenizer);

  const atelier::text::Tokenizer& tokenizer() const { return *tokenizer_; }
  // Tokens of the template before the prompt, whose embeddings are dropped.
  int64_t skip() const { return skip_; }
  // Of the whole template; an empty prompt stands for one space. Throws Error{kInvalidArgument}
  // when the tokenizer lacks the template's marks.
  std::vector<int64_t> tokens(std::string_view prompt) const;

 private:
  std::shared_ptr<const atelier::text::Tokenizer> tokenizer_;
  int64_t skip_;
};

}  // namespace qwen_image
