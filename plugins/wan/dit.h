// The denoiser: one transformer over the cells of a clip, which look at the prompt across.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/shared_rows.h"

#include "addition.h"
#include "config.h"
#include "dit_block.h"

namespace wan {

class CameraControl;
class Dance;
class Driving;
class ReferenceFrame;
class Speech;

// Rows of a prompt; those behind its tokens are zero.
inline constexpr int64_t kTextRows = 512;

// Conditioning of models that are shown images: rows of an image encoder, and what is known of the
// clip.
inline constexpr const char* kImageEmbeds = "image_embeds";
inline constexpr const char* kGivenClip = "given_clip";
// In models whose latents begin with a clean frame: that frame.
inline constexpr const char* kFirstFrame = "first_frame";

// What the rows of a pass are made of: patches, texts and time. Weights of `parent`.
class Embeddings {
 public:
  Embeddings(atelier::nn::Module* parent, const DitConfig& config);

  // [B, C, T, H, W] to the rows of its tokens, [B T' H' W', D].
  at::Tensor patches(const at::Tensor& x_BCTHW) const;
  // [B kTextRows, D]: rows behind those of a prompt are made of zeros, and attended to.
  at::Tensor text(const atelier::PackedRows& prompts, at::ScalarType dtype) const;
  at::Tensor time(const at::Tensor& sigma_S) const;     // [S, D] float32
  at::Tensor project(const at::Tensor& time_SD) const;  // [S, 6 D] float32
  at::ScalarType dtype() const { return patches_.weight->draw().scalar_type(); }

 private:
  int64_t time_width_;
  atelier::nn::Conv3d patches_;
  atelier::nn::Linear text_in_, text_out_;
  atelier::nn::Linear time_in_, time_out_, time_projection_;
};

// The stretches around the latents of one sample.
struct Around {
  std::vector<Stretch> front, behind;
};

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
  // "motion_rows", [6 width], are added to a sample's projected time. Of Wan-Fun also what fun.h
  // and camera.h name, where it hears what s2v.h says, of a model that dances what dancer.h names.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return config_.patch; }
  at::ScalarType dtype() const override { return embeddings_.dtype(); }
  std::vector<atelier::ConditioningEntry> entries() const override;
  int64_t heads() const override { return config_.heads; }
  int64_t key_heads() const override { return config_.heads; }

  // The driving clip of Wan2.2-Animate-2; null elsewhere.
  Driving* driving() const { return driving_.get(); }

  // Runs with `addition` for as long as this lives, behind those of its own.
  class With {
   public:
    With(Dit& dit, Addition& addition) : dit_(dit) { dit.additions_.push_back(&addition); }
    ~With() { dit_.additions_.pop_back(); }
    With(const With&) = delete;
    With& operator=(const With&) = delete;

   private:
    Dit& dit_;
  };

 private:
  at::Tensor with_given(const atelier::DenoiseInputs& in) const;
  at::Tensor with_motion(const atelier::DenoiseInputs& in, const at::Tensor& projected) const;
  const atelier::nn::Waves& waves(const std::vector<Around>& around, int64_t T, int64_t H,
                                  int64_t W, at::Device device);
  void run_block(int64_t index, Pass& pass);
  at::Tensor tokens_of(const Pass& pass, const at::Tensor& own) const;

  DitConfig config_;
  Embeddings embeddings_;
  std::unique_ptr<ImageEmbedding> image_embedding_;  // null: no images are read
  std::unique_ptr<ReferenceFrame> reference_;        // null: no frame stands in front
  std::unique_ptr<CameraControl> camera_;            // null: no camera is followed
  std::unique_ptr<Speech> speech_;                   // null: no sound is heard
  std::vector<std::unique_ptr<DitBlock>> blocks_;
  Head head_;
  std::unique_ptr<Driving> driving_;
  std::unique_ptr<Dance> dance_;      // null: it does not dance
  std::vector<Addition*> additions_;  // that run now
  // By sizes of the latents, and how many rows stand around them.
  atelier::nn::RecentTables<std::pair<std::vector<int64_t>, at::Device>, atelier::nn::Waves> waves_;
};

}  // namespace wan
