// One loaded Wan: how prompts and images are encoded.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "atelier/component_model.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  // See ComponentModel; `variant` is the denoiser's, or empty.
  Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
      const atelier::ModelOptions& options, const atelier::LatentSpec& latents,
      std::string variant);
  ~Wan() override;

  // Clips of Animate are as long and large as that of the pose, and made in segments; their latents
  // have a frame of the character in front.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  std::vector<int64_t> latent_shape(const atelier::MediaTarget& target,
                                    const atelier::Conditioning& cond) const override;
  atelier::FinishedLatents to_decode(const at::Tensor& latents_BCTHW,
                                     const atelier::Conditioning& cond) const override;
  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stages images and first_image give "image_embeds": [L, image_width], the
  // rows of each image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H,
  // W], which frames are known and the latents of a clip of them that is grey elsewhere. Stage
  // first_frame gives "first_frame", [C, 1, H, W], and "free_frames", [T], which the others are.
  // Stage motion gives "motion": [1] float32. Of Animate, stage animate_pose gives "animate_pose":
  // [C, T, H, W], animate_faces "animate_faces": bytes [3, F, S, S], and animate_clip the
  // "given_clip" of the character, then of the clip.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;
  // Cleaned, with the end token, and cut to what is encoded.
  std::vector<int64_t> tokenize(std::string_view text) const override;

  // Where a sample says how much moves, the motion controller makes "motion_rows" of it. Poses and
  // faces are read by the adapter of Animate.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  // The first frame, where the latents begin with it; it is clean.
  std::optional<atelier::GivenLatents> given(const atelier::Conditioning& cond,
                                             at::IntArrayRef latents_CTHW) const override;

  // In the image encoder "image" [B, 3, H, W] becomes "image_embeds" [B, L, image_width], and in
  // the motion controller "motion" [B] "motion_rows" [B, 6 width]. In the adapter of Animate "pose"
  // becomes "pose_rows", "faces" "face_rows", and "rows" with "face_rows" "adapted".
  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;

 private:
  bool animates() const;
  std::vector<int64_t> ids_of(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_text(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_images(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);
  atelier::Conditioning encode_given(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_first(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  // Every stage of Animate.
  atelier::Conditioning encode_animate(const atelier::EncodeInputs& in,
                                       atelier::BlockRunner& runner);
  at::Tensor denoise_as_it_moves(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner);

  std::string variant_;
};

}  // namespace wan
