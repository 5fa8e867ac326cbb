// One loaded Qwen-Image: how prompts and pictures are encoded, and how guidance combines
// velocities.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "atelier/component_model.h"

#include "addition.h"
#include "controls.h"
#include "pictures.h"
#include "prompt.h"

namespace qwen_image {

class QwenImage final : public atelier::ComponentModel {
 public:
  // See ComponentModel's constructor.
  QwenImage(std::span<const atelier::ComponentRow> rows, std::span<const atelier::Detection> parts,
            const atelier::ModelOptions& options);
  ~QwenImage() override;

  // Layers: see layered_target(). Else as large as the last picture to be edited, at an area of
  // 1024 x 1024. Throws Error{kInvalidArgument} for pictures that cannot be shown, and for too many
  // of them.
  atelier::MediaTarget target(const atelier::Inputs& inputs,
                              const atelier::MediaTarget& asked) const override;

  // A ControlNet runs where one of its pictures counts in some step.
  bool runs(std::string_view control, const atelier::Inputs& inputs, int64_t step,
            int64_t steps) const override;

  // Decodes layers one by one: each frame is a picture of its own.
  void decode(const at::Tensor& latents_BCTHW, atelier::BlockRunner& runner,
              const atelier::FrameSink& sink) override;

  // Stage text gives "prompt_embeds": [L, text_width], in compute dtype. Stage references gives
  // what reference_name() says, [C, 1, H, W] of each picture, and what is asked for of
  // kStretchedPlaces, kCleanPictures and kNoisyPictures. Stage entities gives what entity_name()
  // and kRegions say, and on the negative branch of guidance, where it is asked for,
  // kEntitiesOfPrompt and kRegions.
  atelier::Conditioning encode(const atelier::EncodeInputs& in,
                               atelier::BlockRunner& runner) override;
  atelier::TextLength text_length(const atelier::EncodeInputs& in) const override;

  // ControlNets run beside the denoiser where a sample has a picture for them, see control_name().
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;
  std::vector<at::Tensor> denoise_all(std::span<const atelier::DenoiseInputs> calls,
                                      atelier::BlockRunner& runner) override;

  // Beside the given levels, that of clean references is prepared where pictures are edited.
  void prepare_levels(std::string_view denoiser, std::span<const float> sigmas,
                      atelier::BlockRunner& runner) override;

  // Keeps each token's length: the combined velocity is scaled to the norm of `with`, over the
  // values of a token. Of layers only where it is asked for.
  at::Tensor guide(const atelier::GuideInputs& in, atelier::BlockRunner& runner) override;

  // In the vision tower "image" [3, H, W] in [-1, 1] becomes "pixel_values" [N, 1176] and "grid"
  // [1, 3], and these become "picture_embeds" [L, D]. The text encoder takes "picture_embeds",
  // "grid" [P, 3] and "picture_starts" [P] beside the tokens of one sample, and gives "places"
  // [3, L] too.
  atelier::NamedTensors probe(std::string_view component, const atelier::NamedTensors& inputs,
                              atelier::BlockRunner& runner) override;

 private:
  const PromptTemplate& prompts() const;
  atelier::Conditioning encode_text(const atelier::EncodeInputs& in, atelier::BlockRunner& runner);
  atelier::Conditioning encode_references(const atelier::EncodeInputs& in,
                                          atelier::BlockRunner& runner);
  // What training learns: of layers one latent frame each, else one image.
  atelier::Conditioning encode_target(const atelier::Inputs& values, atelier::BlockRunner& runner);
  // The picture that layers are of, behind the one that stands beside them.
  atelier::Conditioning encode_layer_input(const atelier::Inputs& values,
                                           atelier::BlockRunner& runner);
  atelier::Conditioning encode_entities(const atelier::EncodeInputs& in,
                                        atelier::BlockRunner& runner);
  at::Tensor read_with_pictures(std::vector<int64_t> ids, const std::vector<PatchGrid>& grids,
                                const at::Tensor& rows, atelier::BlockRunner& runner);
  PictureRules rules_of(const atelier::Inputs& inputs) const;
  std::vector<at::Tensor> pictures_of(const atelier::Inputs& inputs) const;

  atelier::Conditioning encode_pictures(const ControlKind& kind, const atelier::Inputs& values,
                                        atelier::BlockRunner& runner);
  const std::vector<bool>& readers(const ControlKind& kind) const;
  std::vector<std::unique_ptr<Addition>> controls_of(std::span<const atelier::DenoiseInputs> calls);

  // Whether each ControlNet reads a mask.
  std::vector<bool> blockwise_masks_, controlnet_masks_;
  bool is_layered_;
  std::string variant_;  // of the denoiser, there or not; empty: nothing tells it
  std::optional<PromptTemplate> prompts_, entity_prompts_;
};

}  // namespace qwen_image
