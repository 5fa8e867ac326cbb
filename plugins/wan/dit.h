// The denoiser: one transformer over the cells of a clip, which look at the prompt across.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/shared_rows.h"

#include "config.h"

namespace wan {

class DitBlock;
class ImageEmbedding;

// Rows of a prompt; those behind its tokens are zero.
inline constexpr int64_t kTextRows = 512;

// Conditioning of models that are shown images: rows of an image encoder, and what is known of the
// clip.
inline constexpr const char* kImageEmbeds = "image_embeds";
inline constexpr const char* kGivenClip = "given_clip";
// In models whose latents begin with a clean frame: that frame.
inline constexpr const char* kFirstFrame = "first_frame";

// Weights are called as the original checkpoint calls them. Modulation, time and layer norms are
// float32 whatever the rest is computed in. Not thread-safe: tables of the last shapes are kept
// between calls.
class Dit final : public atelier::Denoiser, public atelier::SharesRows {
 public:
  explicit Dit(const DitConfig& config);
  ~Dit() override;

  // Reads "prompt_embeds": [L, text_width] of each sample, L at most kTextRows. Where the config
  // has them, "image_embeds", [L, image_width], and "given_clip", [given_channels, T, H, W]. The
  // first frame of latents with a "first_frame" is clean, and its tokens are told noise level 0.
  // "motion_rows", [6 width], are added to a sample's projected time.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return config_.patch; }
  at::ScalarType dtype() const override { return patch_embedding_.weight->draw().scalar_type(); }
  std::vector<atelier::ConditioningEntry> entries() const override;
  int64_t heads() const override { return config_.heads; }
  int64_t key_heads() const override { return config_.heads; }

 private:
  // Cosines and sines of a clip of frames x height x width tokens, `count` times over.
  atelier::nn::Waves make_rope(int64_t frames, int64_t height, int64_t width, int64_t count,
                               at::Device device) const;
  at::Tensor embed_text(const atelier::DenoiseInputs& in, at::ScalarType dtype) const;
  at::Tensor embed_time(const at::Tensor& sigma_S) const;
  at::Tensor with_given(const atelier::DenoiseInputs& in) const;
  at::Tensor with_motion(const atelier::DenoiseInputs& in, const at::Tensor& projected) const;

  DitConfig config_;
  atelier::nn::Conv3d patch_embedding_;
  atelier::nn::Linear text_in_, text_out_;
  atelier::nn::Linear time_in_, time_out_, time_projection_;
  std::unique_ptr<ImageEmbedding> image_embedding_;  // null: no images are read
  std::vector<std::unique_ptr<DitBlock>> blocks_;
  atelier::WeightPtr head_modulation_;
  atelier::nn::Linear head_;
  atelier::nn::RecentTables<std::tuple<int64_t, int64_t, int64_t, int64_t, at::Device>,
                            atelier::nn::Waves>
      ropes_;
};

}  // namespace wan
