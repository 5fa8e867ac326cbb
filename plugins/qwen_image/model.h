// One loaded Qwen-Image: how prompts are encoded, and how guidance combines velocities.
#pragma once

#include <optional>

#include "atelier/component_model.h"

#include "text_encoder.h"

namespace qwen_image {

class QwenImage final : public atelier::ComponentModel {
 public:
  // See ComponentModel's constructor.
  QwenImage(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
            const atelier::ModelOptions& options);
  ~QwenImage() override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;

  // Keeps each token's length: the combined velocity is scaled to the norm of `with`, over the
  // values of a token.
  at::Tensor guide(const at::Tensor& with_BCTHW, const at::Tensor& without_BCTHW,
                   double scale) const override;

 private:
  const PromptTemplate& prompts() const;

  std::optional<PromptTemplate> prompts_;
};

}  // namespace qwen_image
