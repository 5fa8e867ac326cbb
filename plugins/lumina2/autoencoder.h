// The image autoencoder: pictures to latents of 16 channels and back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/block.h"
#include "atelier/model_family.h"
#include "atelier/nn/layers.h"

namespace lumina2 {

// The defaults are those of the published autoencoder, for what shapes do not tell.
struct AutoencoderConfig {
  int64_t channels = 16;                               // of the latents
  std::vector<int64_t> widths = {128, 256, 512, 512};  // of each level, finest first
  int64_t res_blocks = 2;  // of an encoder level; a decoder level has one more
  int64_t groups = 32;     // of the group norms
  // Attention behind the blocks of a level of the encoder, and of the decoder, whose coarsest level
  // is its first; empty: nowhere. And in the middle of both.
  std::vector<bool> down_attention, up_attention;
  bool mid_attention = true;
  bool conv_attention = false;  // whether attention's products are stored as 1 x 1 convolutions
  bool quant_conv = false, post_quant_conv = false;  // convolutions behind encoder, before decoder
  double scale = 0.3611, shift = 0.1159;             // latents are (z - shift) * scale

  int64_t stride() const { return int64_t{1} << (widths.size() - 1); }  // pixels per latent cell
};

// Says whether a checkpoint holds such an autoencoder, as the component "vae". Its variant is left
// empty. Spellings: "diffusers" (encoder.down_blocks.0.…) and "original" (encoder.down.0.…;
// ComfyUI's too), behind no prefix, "vae." or "first_stage_model.".
std::optional<atelier::Detection> detect_autoencoder(const atelier::TensorIndex& checkpoint);
AutoencoderConfig autoencoder_config(const atelier::Detection& part);
atelier::Detection to_detection(const AutoencoderConfig& config);

// The weight table of a detection, by its spelling; see ModelFamily::weight_map and spellings.
atelier::WeightMap autoencoder_map(const atelier::Detection& part);
std::vector<std::string> autoencoder_spellings();

class AutoencoderHalf;

class Autoencoder final : public atelier::nn::Module {
 public:
  explicit Autoencoder(const AutoencoderConfig& config);
  ~Autoencoder() override;

  // image_BCHW: RGB in [-1, 1], any dtype; H and W are multiples of the stride. Returns the mean of
  // the latents, shifted and scaled, [B, C, h, w] in the weights' dtype.
  at::Tensor encode(const at::Tensor& image_BCHW, atelier::BlockRunner& runner) const;

  // latents_BCHW: as encode() gives them. Returns float32 RGB in [-1, 1].
  at::Tensor decode(const at::Tensor& latents_BCHW, atelier::BlockRunner& runner) const;

  std::vector<atelier::Block*> blocks() const;
  const AutoencoderConfig& config() const { return config_; }

 private:
  AutoencoderConfig config_;
  std::unique_ptr<AutoencoderHalf> encoder_, decoder_;
  std::unique_ptr<atelier::nn::Conv2d> quant_conv_, post_quant_conv_;
};

}  // namespace lumina2
