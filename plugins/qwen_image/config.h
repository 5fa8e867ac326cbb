// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "atelier/model_family.h"

namespace qwen_image {

inline constexpr int64_t kPatch = 2;  // latent cells per denoiser token along each side

struct DitConfig {
  int64_t layers, width, heads, head_dim, mlp_width, text_width;
  int64_t channels;             // of the latents, in and out
  std::array<int64_t, 3> axes;  // channels of a head that carry frame, row and column
};

struct TextEncoderConfig {
  int64_t layers, width, heads, kv_heads, head_dim, mlp_width, vocabulary;
  int64_t window;              // tokens that some layers look back, the token itself among them
  std::vector<bool> windowed;  // of each layer; as published none
  double rope_theta, eps;
};

struct VaeConfig {
  int64_t channels;               // of the latents
  std::vector<int64_t> widths;    // of each level, finest first
  int64_t base_width;             // behind the encoder's first convolution
  int64_t res_blocks;             // of an encoder level; a decoder level has one more
  std::vector<bool> temporal;     // whether the step after level i halves the frames too
  std::vector<double> mean, std;  // of the latents, per channel

  int64_t stride() const { return int64_t{1} << (widths.size() - 1); }  // pixels per latent cell
};

// See ModelFamily::detect.
std::optional<atelier::Detection> detect(const atelier::TensorIndex& checkpoint,
                                         const atelier::DetectHint& hint);

// See ModelFamily::config_fields.
atelier::ConfigFields config_fields(const atelier::Detection& part);

// The numbers of a detection, and detections of given numbers.
DitConfig dit_config(const atelier::Detection& part);
TextEncoderConfig text_encoder_config(const atelier::Detection& part);
VaeConfig vae_config(const atelier::Detection& part);
atelier::Detection to_detection(const DitConfig& config);
atelier::Detection to_detection(const TextEncoderConfig& config);
atelier::Detection to_detection(const VaeConfig& config);

// Mean and standard deviation of the 16 published latent channels.
extern const std::vector<double> kLatentMean, kLatentStd;

}  // namespace qwen_image
