// One loaded Wan: how prompts and images are encoded.
#pragma once

#include <string>

#include "atelier/component_model.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  // See ComponentModel; `variant` is the denoiser's, or empty.
  Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
      const atelier::ModelOptions& options, const atelier::LatentSpec& latents,
      std::string variant);
  ~Wan() override;

  // Checks what a clip of LongCat-Video begins with.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  // A clip of LongCat-Video that is longer than published ones goes on from its last frames.
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stages images and first_image give "image_embeds": [L, image_width], the
  // rows of each image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H,
  // W], which frames are known and the latents of a clip of them that is grey elsewhere. Stage
  // first_frame gives "first_frame", [C, 1, H, W], and "free_frames", [T], which the others are.
  // Stages known_clip and continued_clip give "known_clip": [C, n, H, W], the latents that the clip
  // or the piece begins with. Stage motion gives "motion": [1] float32.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;
  // Cleaned, with the end token, and cut to what is encoded.
  std::vector<int64_t> tokenize(std::string_view text) const override;

  // Where a sample says how much moves, the motion controller makes "motion_rows" of it.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  // As the variant is guided: of LongCat-Video see longcat_guide().
  at::Tensor guide(const atelier::GuideInputs& in, atelier::BlockRunner& runner) override;

  // The first frame or the known clip, where the latents begin with it; it is clean.
  std::optional<atelier::GivenLatents> given(const atelier::Conditioning& cond,
                                             at::IntArrayRef latents_CTHW) const override;

  // In the image encoder "image" [B, 3, H, W] becomes "image_embeds" [B, L, image_width], and in
  // the motion controller "motion" [B] "motion_rows" [B, 6 width].
  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;

 private:
  std::vector<int64_t> ids_of(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_text(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_images(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);
  atelier::Conditioning encode_given(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_first(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_known(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);

  std::string variant_;
};

}  // namespace wan
