// AutoencoderKL, the image autoencoder of Stable Diffusion, FLUX.1 and models since: 2 pixels
// to the power of its levels less one a latent cell along each side.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/component_model.h"
#include "atelier/config_fields.h"
#include "atelier/nn/layers.h"

namespace atelier::parts {

// The defaults are those of FLUX.1's, for what shapes do not tell.
struct AutoencoderKLConfig {
  int64_t channels = 16;                               // of the latents
  std::vector<int64_t> widths = {128, 256, 512, 512};  // of each level, finest first
  int64_t res_blocks = 2;  // of an encoder level; a decoder level has one more
  int64_t groups = 32;     // of the group norms
  // Attention behind the blocks of a level of the encoder, and of the decoder, whose coarsest level
  // is its first; empty: nowhere. And in the middle of both.
  std::vector<bool> down_attention = {}, up_attention = {};
  bool mid_attention = true;
  bool conv_attention = false;  // whether attention's products are stored as 1 x 1 convolutions
  bool quant_conv = false, post_quant_conv = false;  // convolutions behind encoder, before decoder
  double scale = 0.3611, shift = 0.1159;             // latents are (z - shift) * scale

  template <class Fields>
  void visit(Fields&& fields) {
    fields("channels", channels), fields("widths", widths), fields("res_blocks", res_blocks);
    fields("groups", groups), fields("down_attention", down_attention);
    fields("up_attention", up_attention), fields("mid_attention", mid_attention);
    fields("conv_attention", conv_attention), fields("quant_conv", quant_conv);
    fields("post_quant_conv", post_quant_conv), fields("scale", scale), fields("shift", shift);
  }
};

// Says whether a checkpoint holds such an autoencoder, as the component "vae". Its variant is left
// empty. Spellings: "diffusers" (encoder.down_blocks.0.…) and "original" (encoder.down.0.…;
// ComfyUI's too), behind no prefix, "vae." or "first_stage_model.".
std::optional<Detection> detect_autoencoder_kl(const TensorIndex& checkpoint);

// See ModelFamily.
ConfigFields autoencoder_kl_fields(const Detection& part);
WeightMap autoencoder_kl_map(const Detection& part);

// A small one of 16 latent channels, for tests, whose numbers shapes alone tell.
Detection tiny_autoencoder_kl();

class AutoencoderKLHalf;

class AutoencoderKL final : public Autoencoder {
 public:
  explicit AutoencoderKL(const AutoencoderKLConfig& config);
  ~AutoencoderKL() override;

  // The mean of the latents, shifted and scaled. T is 1.
  at::Tensor encode(const at::Tensor& pixels_BCTHW, BlockRunner& runner) const override;
  void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
              const FrameSink& sink) const override;

  int64_t channels() const override { return config_.channels; }
  int64_t spatial_stride() const override { return int64_t{1} << (config_.widths.size() - 1); }

 private:
  AutoencoderKLConfig config_;
  std::unique_ptr<AutoencoderKLHalf> encoder_, decoder_;
  std::unique_ptr<nn::Conv2d> quant_conv_, post_quant_conv_;
};

// The row of a family whose VAE it is.
constexpr ComponentRow autoencoder_kl_row(std::string_view help) {
  return {.spec = {.name = "vae", .role = Role::kVae, .help = help},
          .detect = detect_autoencoder_kl,
          .config_fields = autoencoder_kl_fields,
          .weight_map = autoencoder_kl_map,
          .make = make_part<AutoencoderKL, AutoencoderKLConfig>,
          .tiny = tiny_autoencoder_kl,
          .spellings = {"diffusers", "original"}};
}

}  // namespace atelier::parts
