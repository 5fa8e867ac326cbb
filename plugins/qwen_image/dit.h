// The denoiser: a transformer over image tokens and text tokens with joint attention.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/layers.h"
#include "atelier/segments.h"

#include "config.h"

namespace qwen_image {

class DitBlock;

// Not thread-safe: tables of the last shapes are kept between calls.
class Dit final : public atelier::nn::Module {
 public:
  explicit Dit(const DitConfig& config);
  ~Dit() override;

  // Predicts noise - clean.
  //
  // x_BCTHW: noisy latents, compute dtype, T = 1, even H and W. sigma_B: float32 on x's device.
  // prompts: one per sample, [L, text_width], lengths may differ. level: which prepared one sigma_B
  // holds. Returns the shape and dtype of x_BCTHW. Throws Error{kInvalidArgument} for a level that
  // is not prepared.
  at::Tensor forward(const at::Tensor& x_BCTHW, const at::Tensor& sigma_B,
                     std::span<const at::Tensor> prompts, std::optional<int64_t> level,
                     atelier::BlockRunner& runner);

  // See atelier::Model.
  std::vector<atelier::WeightPtr> level_weights() const;
  void prepare_levels(std::span<const float> sigmas, atelier::BlockRunner& runner);
  void forget_levels() { levels_ = {}; }

  std::vector<atelier::Block*> blocks();
  at::ScalarType dtype() const { return img_in_.weight->draw().scalar_type(); }
  const DitConfig& config() const { return config_; }

 private:
  // Cosines and sines of every row, [N, head_dim / 2] float32.
  struct Rope {
    int64_t height, width;  // in tokens
    std::vector<int64_t> lengths;
    at::Device device;
    at::Tensor image_cos, image_sin, text_cos, text_sin;
  };
  const Rope& rope(int64_t height, int64_t width, const std::vector<int64_t>& lengths,
                   at::Device device);

  // What depends on nothing but the noise level, a row for each.
  struct Levels {
    int64_t count = 0;
    std::vector<at::Tensor> blocks;  // of each block: [count, 12 D]
    at::Tensor end;                  // [count, 2 D]
  };
  // silu(time), see DitBlock.
  at::Tensor time_rows(const at::Tensor& sigma_B, at::ScalarType dtype) const;

  DitConfig config_;
  atelier::nn::Linear time_in_, time_out_;
  atelier::nn::RMSNorm txt_norm_;
  atelier::nn::Linear img_in_, txt_in_;
  std::vector<std::unique_ptr<DitBlock>> blocks_;
  atelier::nn::Linear norm_out_, proj_out_;
  std::vector<Rope> ropes_;  // most recently used last
  Levels levels_;
};

}  // namespace qwen_image
