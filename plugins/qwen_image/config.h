// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "atelier/architecture.h"

namespace qwen_image {

inline constexpr int64_t kPatch = 2;  // latent cells per denoiser token along each side
inline constexpr std::string_view kVariants[] = {"qwen-image", "qwen-image-2512"};

struct DitConfig {
  int64_t layers, width, heads, head_dim, mlp_width, text_width;
  int64_t channels;             // of the latents, in and out
  std::array<int64_t, 3> axes;  // channels of a head that carry frame, row and column

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("head_dim", head_dim), fields("mlp_width", mlp_width), fields("text_width", text_width);
    fields("channels", channels), fields("axes", axes);
  }
};

struct TextEncoderConfig {
  int64_t layers, width, heads, kv_heads, head_dim, mlp_width, vocabulary;
  int64_t window;              // tokens that some layers look back, the token itself among them
  std::vector<bool> windowed;  // of each layer; as published none
  double rope_theta, eps;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("kv_heads", kv_heads), fields("head_dim", head_dim), fields("mlp_width", mlp_width);
    fields("vocabulary", vocabulary), fields("window", window), fields("windowed", windowed);
    fields("rope_theta", rope_theta), fields("eps", eps);
  }
};

// See ComponentRow::detect.
std::optional<atelier::Detection> detect_dit(const atelier::TensorIndex& checkpoint);
std::optional<atelier::Detection> detect_text_encoder(const atelier::TensorIndex& checkpoint);
std::optional<atelier::Detection> detect_vae(const atelier::TensorIndex& checkpoint);

// See ModelFamily::config_fields.
atelier::ConfigFields dit_fields(const atelier::Detection& part);
atelier::ConfigFields text_encoder_fields(const atelier::Detection& part);
atelier::ConfigFields vae_fields(const atelier::Detection& part);

}  // namespace qwen_image
