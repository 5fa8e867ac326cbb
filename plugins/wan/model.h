// One loaded Wan: how prompts and images are encoded.
#pragma once

#include "atelier/component_model.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  using ComponentModel::ComponentModel;
  ~Wan() override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stages images and first_image give "image_embeds": [L, image_width], the
  // rows of each image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H,
  // W], which frames are known and the latents of a clip of them that is grey elsewhere. Stage
  // first_frame gives "first_frame", [C, 1, H, W], and "free_frames", [T], which the others are.
  // Stage motion gives "motion": [1] float32. Stages of Wan-Fun: shown_image gives "image_embeds"
  // of the reference, or else of the first frame; control_clip "control_clip", [C, T, H, W], the
  // latents of the control video; reference "reference_latents", [C, H, W]; start_image
  // "given_clip", [C, T, H, W], the latents of the first frame alone and zeros; camera "camera",
  // see camera.h.
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
  // Nothing: it is no stage of Wan-Fun.
  std::optional<atelier::Conditioning> encode_fun(const atelier::EncodeInputs& in,
                                                  atelier::BlockRunner& runner);
  atelier::Conditioning encode_first(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
};

}  // namespace wan
