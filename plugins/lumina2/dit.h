// The denoiser: NextDiT, one transformer over the rows of text and picture, behind a few blocks for
// each of them alone.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"
#include "atelier/segments.h"

#include "config.h"

namespace lumina2 {

class DitBlock;

// Weights are called as the original checkpoint calls them. Not thread-safe: tables of the last
// shapes are kept between calls.
class Dit final : public atelier::nn::Module {
 public:
  explicit Dit(const DitConfig& config);
  ~Dit() override;

  // Predicts noise - clean.
  //
  // x_BCTHW: noisy latents, compute dtype, T = 1, H and W in whole patches. sigma_B: float32 on x's
  // device. prompts: one per sample, [L, text_width], lengths may differ. level: which prepared one
  // sigma_B holds. Returns the shape and dtype of x_BCTHW. Throws Error{kInvalidArgument} for a
  // level that is not prepared.
  at::Tensor forward(const at::Tensor& x_BCTHW, const at::Tensor& sigma_B,
                     std::span<const at::Tensor> prompts, std::optional<int64_t> level,
                     atelier::BlockRunner& runner);

  // See atelier::Model.
  std::vector<atelier::WeightPtr> level_weights() const;
  void prepare_levels(std::span<const float> sigmas, atelier::BlockRunner& runner);
  void forget_levels() { levels_ = {}; }

  // Of the text, of the picture, of both.
  std::vector<atelier::Block*> blocks();
  at::ScalarType dtype() const { return x_embedder_.weight->draw().scalar_type(); }
  const DitConfig& config() const { return config_; }

 private:
  // Cosines and sines of every row, [N, head_dim / 2] float32.
  struct Rope {
    int64_t height, width;  // in tokens
    std::vector<int64_t> lengths;
    at::Device device;
    at::Tensor image_cos, image_sin, text_cos, text_sin, cos, sin;  // the last of both, joined
  };
  const Rope& rope(int64_t height, int64_t width, const std::vector<int64_t>& lengths,
                   at::Device device);

  // What depends on nothing but the noise level, a row for each.
  struct Levels {
    int64_t count = 0;
    std::vector<at::Tensor> blocks;  // of each modulated block: [count, 4 D]
    at::Tensor end;                  // [count, D]
  };
  // silu(time) of each level, see DitBlock.
  at::Tensor time_rows(const at::Tensor& sigma_B) const;
  std::vector<DitBlock*> modulated_blocks() const;
  std::vector<std::unique_ptr<DitBlock>> make_blocks(const char* name, int64_t count,
                                                     bool is_modulated);

  DitConfig config_;
  atelier::nn::Linear x_embedder_;
  atelier::nn::Linear time_in_, time_out_;
  atelier::nn::RMSNorm caption_norm_;
  atelier::nn::Linear caption_in_;
  std::vector<std::unique_ptr<DitBlock>> context_refiner_, noise_refiner_, layers_;
  atelier::nn::Linear final_modulation_, final_linear_;
  std::vector<Rope> ropes_;  // most recently used last
  Levels levels_;
};

}  // namespace lumina2
