// The denoiser: a transformer over image tokens and text tokens with joint attention.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"
#include "atelier/shared_rows.h"

#include "addition.h"
#include "config.h"
#include "rope.h"

namespace qwen_image {

class DitBlock;

// Entries of a conditioning: the latents of the references, [C, 1, H, W] of any size, from number 0
// on; whether references take their places from the image's, as if they were stretched to its
// size; and whether they are modulated as clean ones or at the image's level, where it is not as
// DitConfig says.
inline constexpr int64_t kMaxReferences = 10;
std::string reference_name(int64_t number);
inline constexpr const char *kStretchedPlaces = "stretched_places",
                            *kCleanPictures = "clean_pictures", *kNoisyPictures = "noisy_pictures";

// Not thread-safe: tables of the last shapes are kept between calls.
class Dit final : public atelier::Denoiser, public atelier::PacksCalls, public atelier::SharesRows {
 public:
  explicit Dit(const DitConfig& config);
  ~Dit() override;

  // Reads "prompt_embeds": [L, text_width] of each sample, and its references.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;
  std::vector<at::Tensor> denoise_all(std::span<const atelier::DenoiseInputs> calls,
                                      atelier::BlockRunner& runner) override;

  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return kPatch; }
  at::ScalarType dtype() const override { return img_in_.weight->draw().scalar_type(); }
  std::vector<atelier::ConditioningEntry> entries() const override { return entries_; }
  atelier::nn::NoiseLevels* levels() override { return &levels_; }
  int64_t heads() const override { return config_.heads; }
  int64_t key_heads() const override { return config_.heads; }

  int64_t layers() const { return config_.layers; }

  // Runs what is added beside the blocks while it lives.
  class With {
   public:
    With(Dit& dit, std::span<const std::unique_ptr<Addition>> additions) : dit_(dit) {
      dit.additions_ = additions;
    }
    ~With() { dit_.additions_ = {}; }
    With(const With&) = delete;
    With& operator=(const With&) = delete;

   private:
    Dit& dit_;
  };

  bool has_clean_references() const { return config_.clean_references; }
  // Which prepared level is that of clean references.
  void set_clean_level(int64_t level) { clean_level_ = level; }

 private:
  DitConfig config_;
  std::vector<atelier::ConditioningEntry> entries_;
  std::vector<std::string> reference_names_;  // which entries_ point to
  std::vector<std::string> control_names_;    // likewise
  std::vector<std::string> entity_names_;     // likewise
  std::span<const std::unique_ptr<Addition>> additions_;
  int64_t clean_level_ = 0;
  atelier::nn::Linear time_in_, time_out_;
  std::unique_ptr<atelier::nn::Embedding> added_time_;  // null: nothing is added
  atelier::nn::RMSNorm txt_norm_;
  atelier::nn::Linear img_in_, txt_in_;
  std::vector<std::unique_ptr<DitBlock>> blocks_;
  atelier::nn::Linear norm_out_, proj_out_;
  atelier::nn::NoiseLevels levels_;
  Ropes ropes_;
};

}  // namespace qwen_image
