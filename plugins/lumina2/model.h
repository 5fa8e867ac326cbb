// One loaded Lumina-Image 2.0: how prompts are encoded.
#pragma once

#include "atelier/component_model.h"

namespace lumina2 {

class Lumina2 final : public atelier::ComponentModel {
 public:
  using ComponentModel::ComponentModel;
  ~Lumina2() override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype. "system_prompt" is by
  // default the published one; negative and empty prompts have none.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;
};

}  // namespace lumina2
