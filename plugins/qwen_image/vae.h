// The image autoencoder: pictures to latents and back. Its weights are those of a causal video
// autoencoder, of which a single frame needs the last temporal slice of every convolution.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "atelier/block.h"
#include "atelier/nn/module.h"
#include "atelier/ops/conv.h"

#include "config.h"

namespace qwen_image {

// A convolution with weight [out, in, kt, k, k] or, without kt, [out, in, k, k].
class Conv final : public atelier::nn::Module {
 public:
  // `kt` 0: the weight has no temporal axis.
  Conv(Module* parent, std::string name, int64_t in, int64_t out, int64_t kt, int64_t k,
       int64_t stride = 1);
  ~Conv() override;

  // x: [B, in, H, W]. Zeros are put around a 3 x 3 kernel of stride 1 alone.
  at::Tensor forward(const at::Tensor& x) const;

  atelier::WeightPtr weight, bias;

 private:
  atelier::ops::ConvOptions options_;
};

// Norm over channels. Weight "gamma": [C, 1, 1, 1], or [C, 1, 1] in attention.
class ChannelNorm final : public atelier::nn::Module {
 public:
  ChannelNorm(Module* parent, std::string name, int64_t channels, bool temporal = true);
  ~ChannelNorm() override;

  at::Tensor forward(const at::Tensor& x, bool silu) const;

  atelier::WeightPtr gamma;
};

// What encoder and decoder share: a convolution, a stack of blocks, norm and convolution.
class VaeHalf final : public atelier::nn::Module {
 public:
  VaeHalf(Module* parent, std::string name, const VaeConfig& config, bool encoder);
  ~VaeHalf() override;

  // x: [B, C, H, W], channels-last.
  at::Tensor forward(const at::Tensor& x, atelier::BlockRunner& runner) const;

  at::ScalarType dtype() const { return conv_in_.weight->draw().scalar_type(); }
  at::Device device() const { return conv_in_.weight->draw().device(); }
  std::vector<atelier::Block*> blocks() const;

 private:
  Conv conv_in_;
  std::vector<std::unique_ptr<atelier::Block>> blocks_;
  ChannelNorm norm_out_;
  Conv conv_out_;
};

class Vae final : public atelier::nn::Module {
 public:
  explicit Vae(const VaeConfig& config);
  ~Vae() override;

  // image_BCHW: RGB in [-1, 1], any dtype; H and W are multiples of the stride. Returns the mean of
  // the latents, normalised, [B, C, h, w] in the weights' dtype.
  at::Tensor encode(const at::Tensor& image_BCHW, atelier::BlockRunner& runner) const;

  // latents_BCHW: normalised. Returns float32 RGB in [-1, 1].
  at::Tensor decode(const at::Tensor& latents_BCHW, atelier::BlockRunner& runner) const;

  std::vector<atelier::Block*> blocks() const;
  const VaeConfig& config() const { return config_; }

 private:
  VaeConfig config_;
  VaeHalf encoder_;
  Conv quant_conv_, post_quant_conv_;
  VaeHalf decoder_;
};

}  // namespace qwen_image
