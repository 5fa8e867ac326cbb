// The language model that reads the prompt. Its head is not used.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"

#include "config.h"

namespace qwen_image {

class TextLayer;
struct PictureRows;

class TextEncoder final : public atelier::TextEncoder {
 public:
  explicit TextEncoder(const TextEncoderConfig& config);
  ~TextEncoder() override;

  // Behind the last norm.
  at::Tensor forward(const at::Tensor& ids_N, const atelier::Segments& rows,
                     atelier::BlockRunner& runner) override;

  // Encodes one sample with pictures: their rows take the place of the tokens that stand for
  // them. picture_LD: [L, width()], of all pictures, in the order of `pictures`.
  at::Tensor forward(const at::Tensor& ids_N, std::span<const PictureRows> pictures,
                     const at::Tensor& picture_LD, atelier::BlockRunner& runner);

  int64_t vocabulary() const override { return config_.vocabulary; }
  int64_t width() const override { return config_.width; }

 private:
  at::Tensor run(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin,
                 const atelier::Segments& rows, atelier::BlockRunner& runner);

  TextEncoderConfig config_;
  atelier::nn::Embedding embed_tokens_;
  std::vector<std::unique_ptr<TextLayer>> layers_;
  atelier::nn::RMSNorm norm_;
};

// Where a picture stands among the tokens of a prompt.
struct PictureRows {
  int64_t start = 0;
  int64_t rows = 0, columns = 0;  // in tokens
};

// The place of each of N tokens, int64 [3, N]: time, row and column. Those of a text count up
// together; a picture has one time, and rows and columns from there on.
at::Tensor token_places(int64_t N, std::span<const PictureRows> pictures);

}  // namespace qwen_image
