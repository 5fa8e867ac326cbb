// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <array>
#include <optional>

#include "atelier/model_family.h"

namespace lumina2 {

inline constexpr const char* kVariant = "lumina-image-2.0";
inline constexpr int64_t kPublishedPatch = 2;

struct DitConfig {
  int64_t layers, refiners;  // refiners: of the text, and as many of the picture
  int64_t width, heads, kv_heads, head_dim, mlp_width, text_width, time_width;
  int64_t channels;             // of the latents, in and out
  int64_t patch;                // latent cells per token along each side
  std::array<int64_t, 3> axes;  // channels of a head that carry text position, row and column
  double norm_eps;

  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_width() const { return width + 2 * kv_width(); }
};

// See ModelFamily::detect.
std::optional<atelier::Detection> detect(const atelier::TensorIndex& checkpoint,
                                         const atelier::DetectHint& hint);

// `fields` are read, because shapes do not tell them. Without a config they are those of the
// published model, in a checkpoint that has its widths; throws Error{kInvalidArgument} for others.
void require_config(const atelier::TensorIndex& checkpoint, bool has_published_widths,
                    const char* component, const char* fields);

// See ModelFamily::config_fields.
atelier::ConfigFields config_fields(const atelier::Detection& part);

// The numbers of a detection, and the detection of given numbers.
DitConfig dit_config(const atelier::Detection& part);
atelier::Detection to_detection(const DitConfig& config);

}  // namespace lumina2
