// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <optional>
#include <string_view>

#include "atelier/architecture.h"

namespace wan {

// Two files of the same tensors, told by their paths. The first makes pictures that lie far apart
// in time, each alone in its latent frame; the second what happens between them.
inline constexpr std::string_view kDancerGlobal = "wan-dancer-14b-global",
                                  kDancerLocal = "wan-dancer-14b-local";

// Each expert of wan2.2-t2v-a14b has the tensors of wan2.1-t2v-14b.
inline constexpr std::string_view kVariants[] = {
    "wan2.1-t2v-1.3b", "wan2.1-t2v-14b",       "wan2.1-t2v-14b-krea", "wan2.1-i2v-1.3b",
    "wan2.1-i2v-14b",  "wan2.1-i2v-14b-flf2v", "wan2.2-t2v-a14b",     "wan2.2-i2v-a14b",
    "wan2.2-ti2v-5b",  kDancerGlobal,          kDancerLocal};

// The variant of wide latents, and their channels, which no other variant has.
inline constexpr const char* kWide = "wan2.2-ti2v-5b";
inline constexpr int64_t kWideChannels = 48;

// Frames a latent frame after the first; a mask of frames has as many channels beside the latents.
inline constexpr int64_t kFrameStride = 4;

struct DitConfig {
  int64_t layers, width, heads, mlp_width, text_width;
  int64_t image_width;     // of the rows that an image encoder gives; 0: it reads none
  int64_t image_rows;      // those rows have positions of their own; 0: they have not
  int64_t time_width;      // cosines and sines of a noise level
  int64_t channels;        // of the latents, in and out
  int64_t given_channels;  // of what is known of the clip, beside the latents; 0: nothing is
  int64_t patch;           // latent cells per token along height and width
  double norm_eps;
  // Features of music and its encoder, in a model that dances; 0: it does not.
  int64_t music_channels = 0, music_width = 0, music_mlp_width = 0, music_layers = 0;

  int64_t head_dim() const { return width / heads; }

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("text_width", text_width);
    fields("image_width", image_width), fields("image_rows", image_rows);
    fields("time_width", time_width), fields("channels", channels);
    fields("given_channels", given_channels), fields("patch", patch);
    fields("norm_eps", norm_eps);
    fields("music_channels", music_channels), fields("music_width", music_width);
    fields("music_mlp_width", music_mlp_width), fields("music_layers", music_layers);
  }
};

// See ComponentRow.
std::optional<atelier::Detection> detect_dit(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields dit_fields(const atelier::Detection& part);
atelier::WeightMap dit_map(const atelier::Detection& part);
std::optional<atelier::Detection> detect_vae(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields vae_fields(const atelier::Detection& part);

}  // namespace wan
