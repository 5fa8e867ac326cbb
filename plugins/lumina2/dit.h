// The denoiser: NextDiT, one transformer over the rows of text and image, behind a few blocks for
// each of them alone.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "atelier/component_model.h"
#include "atelier/nn/layers.h"
#include "atelier/nn/waves.h"
#include "atelier/shared_rows.h"

#include "config.h"

namespace lumina2 {

class DitBlock;

// Weights are called as the original checkpoint calls them. Not thread-safe: tables of the last
// shapes are kept between calls.
class Dit final : public atelier::Denoiser, public atelier::PacksCalls, public atelier::SharesRows {
 public:
  explicit Dit(const DitConfig& config);
  ~Dit() override;

  // Reads "prompt_embeds": [L, text_width] of each sample.
  at::Tensor denoise(const atelier::DenoiseInputs& in, atelier::BlockRunner& runner) override;
  std::vector<at::Tensor> denoise_all(std::span<const atelier::DenoiseInputs> calls,
                                      atelier::BlockRunner& runner) override;

  int64_t channels() const override { return config_.channels; }
  int64_t patch() const override { return config_.patch; }
  at::ScalarType dtype() const override { return x_embedder_.weight->draw().scalar_type(); }
  std::vector<atelier::ConditioningEntry> entries() const override {
    return {{.width = config_.text_width}};
  }
  atelier::nn::NoiseLevels* levels() override { return &levels_; }
  int64_t heads() const override { return config_.heads; }
  int64_t key_heads() const override { return config_.kv_heads; }

 private:
  // Cosines and sines of every row, [N, head_dim / 2] float32.
  struct Rope {
    at::Tensor image_cos, image_sin, text_cos, text_sin, cos, sin;  // the last of both, joined
  };
  // What one sample has: the image in tokens, and its text.
  struct SampleRows {
    int64_t height, width, text;
    bool operator==(const SampleRows&) const = default;
  };
  Rope make_rope(const std::vector<SampleRows>& samples, at::Device device) const;
  std::vector<SampleRows> rows_of(std::span<const atelier::DenoiseInputs> calls,
                                  const std::vector<int64_t>& texts) const;
  // Latents of all samples of `calls` to rows of tokens, one after the other.
  at::Tensor to_rows(std::span<const atelier::DenoiseInputs> calls) const;
  // Rows of all samples back to latents, as those of each call.
  std::vector<at::Tensor> to_latents(const at::Tensor& rows,
                                     std::span<const atelier::DenoiseInputs> calls) const;
  std::vector<std::unique_ptr<DitBlock>> make_blocks(const char* name, int64_t count,
                                                     bool is_modulated);

  DitConfig config_;
  atelier::nn::Linear x_embedder_;
  atelier::nn::Linear time_in_, time_out_;
  atelier::nn::RMSNorm caption_norm_;
  atelier::nn::Linear caption_in_;
  // The blocks of the text, of the image, and of both.
  std::vector<std::unique_ptr<DitBlock>> context_refiner_, noise_refiner_, layers_;
  atelier::nn::Linear final_modulation_, final_linear_;
  atelier::nn::NoiseLevels levels_;
  atelier::nn::RecentTables<std::pair<std::vector<SampleRows>, at::Device>, Rope> ropes_;
};

}  // namespace lumina2
