// One loaded Lumina-Image 2.0: how prompts are encoded.
#pragma once

#include "atelier/component_model.h"

namespace lumina2 {

class Lumina2 final : public atelier::ComponentModel {
 public:
  using ComponentModel::ComponentModel;
  ~Lumina2() override;

  // Gives "prompt_embeds": [L, text_width], in compute dtype. Reads "prompt", "system_prompt" (by
  // default the published one) and "is_negative": negative and empty prompts have no system prompt.
  atelier::Conditioning encode_text(const atelier::Inputs& inputs,
                                    atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::Inputs& inputs) const override;
};

}  // namespace lumina2
