// One loaded Wan: how prompts and images are encoded.
#pragma once

#include <memory>
#include <vector>

#include "atelier/component_model.h"

#include "variant.h"

namespace wan {

class Wan final : public atelier::ComponentModel {
 public:
  // See ComponentModel.
  Wan(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
      const atelier::ModelOptions& options, const atelier::LatentSpec& latents);
  ~Wan() override;

  // For variants.
  using ComponentModel::encode_latents;
  using ComponentModel::loaded;
  using ComponentModel::tokenizer;
  // [L, text_width] of a text's tokens, of which those behind the limit are cut off.
  at::Tensor encode_cut(std::vector<int64_t> ids, atelier::BlockRunner& runner);
  // Stage given_clip of images alone.
  atelier::Conditioning encode_given(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  // [4 + C, T, H, W]: which frames are known, and the latents of a clip of them that is grey
  // elsewhere. The first or the last one may be undefined.
  at::Tensor known_clip(const at::Tensor& first_C1HW, const at::Tensor& last_C1HW,
                        const atelier::MediaTarget& target, atelier::BlockRunner& runner);
  // Latents, [C, T, h, w], of a clip [3, F, H, W] in [-1, 1].
  at::Tensor latents_of(const at::Tensor& clip_CFHW, atelier::BlockRunner& runner);
  // Rows of the image encoder, [L, image_width], of an image [3, H, W] that is brought to a square,
  // whatever its shape is.
  at::Tensor look_squeezed(const at::Tensor& image_CHW, atelier::BlockRunner& runner);
  // As the denoiser does by itself.
  at::Tensor denoise_alone(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner);

  // Where a VACE follows a clip, what is made has that clip's size. Throws where it is told how
  // much counts, and there is nothing to follow. With a driving clip it is as long as that, in the
  // shape of the reference image; see animate2.h. With a clip of a pose it is as long and large.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;
  bool runs(std::string_view control, const atelier::Inputs& inputs, int64_t step,
            int64_t steps) const override;
  // With pictures in front: those of a VACE, the reference image of a driving clip, or the
  // character of Animate.
  std::vector<int64_t> latent_shape(const atelier::MediaTarget& target,
                                    const atelier::Conditioning& cond) const override;
  // Without them.
  atelier::FinishedLatents to_decode(const at::Tensor& latents_BCTHW,
                                     const atelier::Conditioning& cond) const override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype; an empty negative prompt
  // is the published one. Stages images and first_image give "image_embeds": [L, image_width], the
  // rows of each image, first the first frame's. Stage given_clip gives "given_clip": [4 + C, T, H,
  // W], which frames are known and the latents of a clip of them that is grey elsewhere. Stage
  // first_frame gives "first_frame", [C, 1, H, W], and "free_frames", [T], which the others are.
  // Stage motion gives "motion": [1] float32. What the stages of variants give is told by their
  // headers: vace.h, fun.h, camera.h, animate.h, animate2.h, vap.h, s2v_stages.h and dancer.h.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;
  // Cleaned, with the end token, and cut to what is encoded.
  std::vector<int64_t> tokenize(std::string_view text) const override;

  // Where a sample says how much moves, the motion controller makes "motion_rows" of it; where it
  // has a "vace_clip", the VACE beside the denoiser runs, and where "animate_pose" its adapter.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  // As the variant is guided.
  at::Tensor guide(const atelier::GuideInputs& in, atelier::BlockRunner& runner) override;

  // The first frame or the known clip, where the latents begin with it; it is clean.
  std::optional<atelier::GivenLatents> given(const atelier::Conditioning& cond,
                                             at::IntArrayRef latents_CTHW) const override;

  std::vector<atelier::Piece> pieces(const atelier::Inputs& inputs,
                                     const atelier::MediaTarget& target) const override;
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      atelier::BlockRunner& runner) override;
  void forget_levels() override;

  // Pictures that stand alone are decoded one by one.
  void decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
              const atelier::FrameSink& sink) override;

  // In the image encoder "image" [B, 3, H, W] becomes "image_embeds" [B, L, image_width], in the
  // motion controller "motion" [B] "motion_rows" [B, 6 width], and in the audio encoder "samples"
  // [T] "states" [S, F, width]. See Vace::probe() and AnimateAdapter::probe(), too.
  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;

 private:
  std::vector<int64_t> ids_of(const atelier::EncodeInputs& in) const;
  atelier::Conditioning encode_target(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);
  atelier::Conditioning encode_text(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_images(const atelier::EncodeInputs& in,
                                      atelier::BlockRunner& runner);
  atelier::Conditioning encode_first(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  int64_t leading_frames(const atelier::Conditioning& cond) const;
  // Each latent frame is a picture of its own.
  bool makes_pictures() const { return latent_spec().temporal_stride == 1; }

  std::vector<std::unique_ptr<Variant>> variants_;
};

}  // namespace wan
