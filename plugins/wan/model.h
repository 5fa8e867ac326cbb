// One loaded Wan: how prompts and images are encoded.
#pragma once

#include "atelier/component_model.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  using ComponentModel::ComponentModel;
  ~Wan() override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stage images gives "image_embeds": [L, image_width], the rows of each
  // image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H, W], which
  // frames are known and the latents of a clip of them that is grey elsewhere.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;

  // Of the image encoder "image" [B, 3, H, W] becomes "image_embeds" [B, L, image_width].
  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;

 private:
  std::vector<int64_t> ids_of(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_text(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_images(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);
  atelier::Conditioning encode_given(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
};

}  // namespace wan
