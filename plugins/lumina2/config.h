// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <array>
#include <optional>

#include "atelier/architecture.h"

namespace lumina2 {

inline constexpr std::string_view kVariants[] = {"lumina-image-2.0"};
inline constexpr int64_t kPublishedPatch = 2;

struct DitConfig {
  int64_t layers, refiners;  // refiners: of the text, and as many of the image
  int64_t width, heads, kv_heads, head_dim, mlp_width, text_width, time_width;
  int64_t channels;             // of the latents, in and out
  int64_t patch;                // latent cells per token along each side
  std::array<int64_t, 3> axes;  // channels of a head that carry text position, row and column
  double norm_eps;

  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return width + 2 * kv_width(); }

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("refiners", refiners), fields("width", width);
    fields("heads", heads), fields("kv_heads", kv_heads), fields("head_dim", head_dim);
    fields("mlp_width", mlp_width), fields("text_width", text_width);
    fields("time_width", time_width), fields("channels", channels), fields("patch", patch);
    fields("axes", axes), fields("norm_eps", norm_eps);
  }
};

// See ComponentRow.
std::optional<atelier::Detection> detect_dit(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields dit_fields(const atelier::Detection& part);
atelier::ConfigFields gemma2_fields(const atelier::Detection& part);

}  // namespace lumina2
