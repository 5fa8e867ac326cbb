// One loaded Wan: how prompts and images are encoded.
#pragma once

#include "atelier/component_model.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  // See ComponentModel.
  Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
      const atelier::ModelOptions& options, const atelier::LatentSpec& latents);
  ~Wan() override;

  // From a sound: as long as it is, and of the shape of the image, of as many pixels as published.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  // From a sound: each sees the 73 frames before it and makes 80; the first one makes 77, or 80
  // where it follows on something, too.
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  // From a sound: a reference, then the frames.
  std::vector<int64_t> latent_shape(const atelier::MediaTarget& target,
                                    const atelier::Conditioning& cond) const override;
  // From a sound: behind what the piece follows on, or behind the reference.
  atelier::FinishedLatents to_decode(const at::Tensor& latents_BCTHW,
                                     const atelier::Conditioning& cond) const override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stages images and first_image give "image_embeds": [L, image_width], the
  // rows of each image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H,
  // W], which frames are known and the latents of a clip of them that is grey elsewhere. Stages
  // first_frame and reference give "first_frame", [C, 1, H, W]. Stage motion gives "motion": [1]
  // float32. Stages audio and speech give what s2v.h says.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;
  // Cleaned, with the end token, and cut to what is encoded.
  std::vector<int64_t> tokenize(std::string_view text) const override;

  // Where a sample says how much moves, the motion controller makes "motion_rows" of it.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  // The first frame, where the latents begin with it; it is clean.
  std::optional<atelier::GivenLatents> given(const atelier::Conditioning& cond,
                                             at::IntArrayRef latents_CTHW) const override;

  // In the image encoder "image" [B, 3, H, W] becomes "image_embeds" [B, L, image_width], in the
  // motion controller "motion" [B] "motion_rows" [B, 6 width], and in the audio encoder "samples"
  // [T] "states" [S, F, width].
  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;

 private:
  std::vector<int64_t> ids_of(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_text(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_images(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);
  atelier::Conditioning encode_given(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_first(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_audio(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_speech(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);

  bool hears_;  // it is the variant of clips from a sound
};

}  // namespace wan
