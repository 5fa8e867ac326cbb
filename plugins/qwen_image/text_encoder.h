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

struct PromptTokens {
  std::vector<int64_t> ids;  // of the template with the prompt in it
  int64_t skip;  // tokens of the template before the prompt, whose embeddings are dropped
};

// Tokens of `prompt` in the text-to-image template; an empty prompt stands for one space.
// Throws Error{kInvalidArgument} when more than 1024 tokens are left behind the template's
// beginning, or the tokenizer lacks the template's marks.
PromptTokens prompt_tokens(const atelier::text::Tokenizer& tokenizer, std::string_view prompt);

}  // namespace qwen_image
