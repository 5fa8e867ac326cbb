// The causal video autoencoder: 8 or 16 pixels a latent cell along each side, 4 frames a latent
// frame after the first. Of a single frame every convolution needs its last temporal slice alone,
// and what works between frames nothing: images are encoded and decoded as such. Clips go through
// one latent frame at a time, and what their convolutions need of the frames before goes with them,
// so that memory does not grow with their length.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/component_model.h"

namespace atelier::parts {

struct CausalVaeConfig {
  int64_t channels;               // of the latents
  std::vector<int64_t> widths;    // of each level of the encoder, finest first
  int64_t base_width;             // behind the encoder's first convolution
  int64_t res_blocks;             // of an encoder level; a decoder level has one more
  std::vector<bool> temporal;     // whether the step after level i halves the frames too
  std::vector<double> mean, std;  // of the latents, per channel
  // Widths of each level of the decoder; empty: as the encoder's.
  std::vector<int64_t> decoder_widths = {};
  int64_t patch = 1;  // pixels along each side that become channels
  // Levels have a way around them that only moves and averages, and steps keep their width.
  bool is_residual = false;
  int64_t pixel_channels = 3;  // of images, in and out: 4 with transparency

  const std::vector<int64_t>& up_widths() const {
    return decoder_widths.empty() ? widths : decoder_widths;
  }

  template <class Fields>
  void visit(Fields&& fields) {
    fields("channels", channels), fields("widths", widths), fields("base_width", base_width);
    fields("res_blocks", res_blocks), fields("temporal", temporal);
    fields("latents_mean", mean), fields("latents_std", std);
    fields("decoder_widths", decoder_widths), fields("patch", patch);
    fields("is_residual", is_residual);
    fields(kPixelChannels, pixel_channels);
  }

  static constexpr const char* kPixelChannels = "pixel_channels";
};

// What a detection holds, and back. The channels of pixels are in it only where there are not 3:
// checkpoints of training and caches know a model by its detection.
Detection detection_of_causal_vae(const CausalVaeConfig& config, std::string spelling,
                                  std::string prefix = {});
CausalVaeConfig causal_vae_config(const Detection& part);
// See ComponentRow::make.
std::unique_ptr<nn::Module> make_causal_vae(const Detection& part);

// Mean and standard deviation of the 16 published latent channels.
extern const std::vector<double> kCausalVaeMean, kCausalVaeStd;

// Where a checkpoint holds such an autoencoder, and of how many channels its encoder takes images:
// with patches, those of all pixels of one.
struct CausalVaeFile {
  std::string prefix;
  bool is_original;  // spelling "original" (encoder.downsamples.0.…) and not "diffusers"
  bool is_residual;
  int64_t image_channels;
};
std::optional<CausalVaeFile> find_causal_vae(const TensorIndex& checkpoint);

// The detection of what was found, as the component "vae". Throws Error{kUnsupported} when its
// images have neither three channels nor four.
Detection detect_causal_vae(const TensorIndex& checkpoint, const CausalVaeFile& file);

// See ModelFamily. The classes that diffusers gives it are the family's.
ConfigFields causal_vae_fields(const Detection& part, std::vector<ConfigValue> class_names);
WeightMap causal_vae_map(const Detection& part);

// A small one of 16 latent channels, for tests, in the spelling "diffusers".
Detection tiny_causal_vae();

class CausalConv;
class CausalVaeHalf;

// Weights are called as diffusers calls them.
class CausalVae final : public Autoencoder {
 public:
  explicit CausalVae(const CausalVaeConfig& config);
  ~CausalVae() override;

  // The mean of the latents, normalised. Throws Error{kInvalidArgument} unless T is one more than a
  // multiple of temporal_stride().
  at::Tensor encode(const at::Tensor& pixels_BCTHW, BlockRunner& runner) const override;
  // `sink` is called once for each latent frame: one frame, then temporal_stride() at a time.
  void decode(const at::Tensor& latents_BCTHW, BlockRunner& runner,
              const FrameSink& sink) const override;

  int64_t channels() const override { return config_.channels; }
  int64_t spatial_stride() const override { return config_.patch << (config_.widths.size() - 1); }
  int64_t pixel_channels() const override { return config_.pixel_channels; }
  int64_t temporal_stride() const;  // frames a latent frame after the first

 private:
  CausalVaeConfig config_;
  std::unique_ptr<CausalVaeHalf> encoder_;
  std::unique_ptr<CausalConv> quant_conv_, post_quant_conv_;
  std::unique_ptr<CausalVaeHalf> decoder_;
};

}  // namespace atelier::parts
