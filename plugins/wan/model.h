// One loaded Wan: how prompts and images are encoded.
#pragma once

#include <string>
#include <vector>

#include "atelier/component_model.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  // `variant`: that of the denoiser. See ComponentModel for the others.
  Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
      const atelier::ModelOptions& options, const atelier::LatentSpec& latents,
      std::string variant);
  ~Wan() override;

  // Checks what one that dances is given.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stages images and first_image give "image_embeds": [L, image_width], the
  // rows of each image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H,
  // W], which frames are known and the latents of a clip of them that is grey elsewhere. Stage
  // first_frame gives "first_frame", [C, 1, H, W], and "free_frames", [T], which the others are.
  // Stage motion gives "motion": [1] float32. Stages music, reference and keyframes give what
  // dancer.h names, and the last one "image_embeds" and "given_clip".
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

  // A long dance is made in pieces, each between key frames of its own.
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  // Pictures that stand alone are decoded one by one.
  void decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
              const atelier::FrameSink& sink) override;

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

  // What a model that dances is given, see dancer_stages.cpp.
  bool is_dancer() const;
  void check_dance(const atelier::Inputs& inputs, const atelier::MediaTarget& target) const;
  at::Tensor look_at(const at::Tensor& image, atelier::BlockRunner& runner);
  atelier::Conditioning encode_music(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_reference(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner);
  atelier::Conditioning encode_keyframes(const atelier::EncodeInputs& in,
                                         atelier::BlockRunner& runner);
  atelier::Conditioning encode_pictures(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner);
  void decode_pictures(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
                       const atelier::FrameSink& sink);

  std::string variant_;
};

}  // namespace wan
