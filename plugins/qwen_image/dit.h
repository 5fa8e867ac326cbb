// The denoiser: a transformer over image tokens and text tokens with joint attention.
#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"

#include "config.h"

namespace qwen_image {

class DitBlock;

// Not thread-safe: tables of the last shapes are kept between calls.
class Dit final : public atelier::Denoiser {
 public:
  explicit Dit(const DitConfig& config);
  ~Dit() override;

  // Reads "prompt_embeds": [L, text_width] of each sample.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;

  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return kPatch; }
  at::ScalarType dtype() const override { return img_in_.weight->draw().scalar_type(); }
  std::vector<atelier::ConditioningEntry> entries() const override {
    return {{.width = config_.text_width}};
  }
  atelier::nn::NoiseLevels* levels() override { return &levels_; }

 private:
  // Cosines and sines of every row, [N, head_dim / 2] float32.
  struct Rope {
    at::Tensor image_cos, image_sin, text_cos, text_sin;
  };
  // `height` and `width` in tokens, `lengths` of the texts.
  Rope make_rope(int64_t height, int64_t width, const std::vector<int64_t>& lengths,
                 at::Device device) const;

  DitConfig config_;
  atelier::nn::Linear time_in_, time_out_;
  atelier::nn::RMSNorm txt_norm_;
  atelier::nn::Linear img_in_, txt_in_;
  std::vector<std::unique_ptr<DitBlock>> blocks_;
  atelier::nn::Linear norm_out_, proj_out_;
  atelier::nn::NoiseLevels levels_;
  atelier::nn::RecentTables<std::tuple<int64_t, int64_t, std::vector<int64_t>, at::Device>, Rope>
      ropes_;
};

}  // namespace qwen_image
