// The language model that reads the prompt. Its head is not used.
#pragma once

#include <span>

#include "atelier/parts/language_model.h"

#include "config.h"

namespace qwen_image {

struct PictureRows;

// What forward() gives of tokens alone is behind the last norm.
class TextEncoder final : public atelier::parts::LanguageModel {
 public:
  explicit TextEncoder(const TextEncoderConfig& config);
  ~TextEncoder() override;

  // Encodes one sample with pictures: their rows take the place of the tokens that stand for
  // them. picture_LD: [L, width()], of all pictures, in the order of `pictures`.
  at::Tensor forward(const at::Tensor& ids_N, std::span<const PictureRows> pictures,
                     const at::Tensor& picture_LD, atelier::BlockRunner& runner);
  using LanguageModel::forward;

 private:
  TextEncoderConfig config_;
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
