// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/part_view.h"
#include "atelier/parts/brief_detection.h"

namespace wan {

inline constexpr const char* kAnimate = "wan2.2-animate-14b";
// Two files of the same tensors, told by their paths. The first makes pictures that lie far apart
// in time, each alone in its latent frame; the second what happens between them.
inline constexpr std::string_view kDancerGlobal = "wan-dancer-14b-global",
                                  kDancerLocal = "wan-dancer-14b-local";

// Each expert of wan2.2-t2v-a14b has the tensors of wan2.1-t2v-14b.
inline constexpr std::string_view kVariants[] = {"wan2.1-t2v-1.3b",
                                                 "wan2.1-t2v-14b",
                                                 "wan2.1-t2v-14b-krea",
                                                 "wan2.1-i2v-1.3b",
                                                 "wan2.1-i2v-14b",
                                                 "wan2.1-i2v-14b-flf2v",
                                                 "wan2.1-vace-1.3b",
                                                 "wan2.1-vace-14b",
                                                 "wan2.1-fun-control-1.3b",
                                                 "wan2.1-fun-control-14b",
                                                 "wan2.1-fun-control-v1.1-1.3b",
                                                 "wan2.1-fun-control-v1.1-14b",
                                                 "wan2.1-fun-camera-1.3b",
                                                 "wan2.1-fun-camera-14b",
                                                 "wan2.2-t2v-a14b",
                                                 "wan2.2-i2v-a14b",
                                                 "wan2.2-vace-a14b",
                                                 "wan2.2-fun-control-a14b",
                                                 "wan2.2-fun-camera-a14b",
                                                 "wan2.2-ti2v-5b",
                                                 kAnimate,
                                                 "wan2.2-s2v-14b",
                                                 "wan2.2-animate2-14b",
                                                 "wan2.2-animate2-14b-distill",
                                                 "longcat-video",
                                                 kDancerGlobal,
                                                 kDancerLocal};

// A driving clip runs beside. The distilled form has the same tensors: its path tells it, or a
// hint.
inline constexpr std::string_view kDriven = "wan2.2-animate2-14b",
                                  kDrivenDistilled = "wan2.2-animate2-14b-distill";

// The variant of wide latents, and their channels, which no other variant has.
inline constexpr const char* kWide = "wan2.2-ti2v-5b";
inline constexpr int64_t kWideChannels = 48;

// The variant that hears.
inline constexpr const char* kSpeech = "wan2.2-s2v-14b";

// Frames a latent frame after the first; a mask of frames has as many channels beside the latents.
inline constexpr int64_t kFrameStride = 4;
// How many of one make how many of the other.
constexpr int64_t latent_frames_of(int64_t frames) {
  return (frames - 1) / kFrameStride + 1;
}
constexpr int64_t frames_of(int64_t latent_frames) {
  return kFrameStride * (latent_frames - 1) + 1;
}

struct DitConfig {
  int64_t layers, width, heads, mlp_width, text_width;
  int64_t image_width;     // of the rows that an image encoder gives; 0: it reads none
  int64_t image_rows;      // those rows have positions of their own; 0: they have not
  int64_t time_width;      // cosines and sines of a noise level
  int64_t channels;        // of the latents, in and out
  int64_t given_channels;  // of what is known of the clip, beside the latents; 0: nothing is
  int64_t patch;           // latent cells per token along height and width
  double norm_eps;
  // What Wan-Fun has beside others, see fun.h and camera.h.
  int64_t control_channels = 0;  // of the latents of a control clip, beside the latents; 0: none
  bool has_reference = false, has_camera = false;
  bool is_driven = false;         // a driving clip runs beside, see animate2.h
  double first_frame_bias = 0.0;  // of the scores of keys of the clip's first frame, where it does
  // Features of music and its encoder, in a model that dances; 0: it does not.
  int64_t music_channels = 0, music_width = 0, music_mlp_width = 0, music_layers = 0;

  // What is known of sound that is heard; 0: none is.
  int64_t audio_states = 0, audio_width = 0;  // that an audio encoder gives of a moment
  int64_t audio_tokens = 0;                   // of a latent frame, beside a constant one
  std::vector<int64_t> audio_blocks = {};     // behind which it is heard

  static constexpr std::array kLater = {
      "control_channels", "has_reference",   "has_camera",   "is_driven",    "first_frame_bias",
      "audio_states",     "audio_width",     "audio_tokens", "audio_blocks", "music_channels",
      "music_width",      "music_mlp_width", "music_layers"};

  int64_t head_dim() const { return width / heads; }

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("mlp_width", mlp_width), fields("text_width", text_width);
    fields("image_width", image_width), fields("image_rows", image_rows);
    fields("time_width", time_width), fields("channels", channels);
    fields("given_channels", given_channels), fields("patch", patch);
    fields("norm_eps", norm_eps);
    fields("control_channels", control_channels);
    fields("has_reference", has_reference), fields("has_camera", has_camera);
    fields("is_driven", is_driven), fields("first_frame_bias", first_frame_bias);
    fields("audio_states", audio_states), fields("audio_width", audio_width);
    fields("audio_tokens", audio_tokens), fields("audio_blocks", audio_blocks);
    fields("music_channels", music_channels), fields("music_width", music_width);
    fields("music_mlp_width", music_mlp_width), fields("music_layers", music_layers);
  }
};

// What stands in front of all names in published files.
inline constexpr std::string_view kPrefixes[] = {
    "", "model.diffusion_model.", "diffusion_model.", "transformer.", "model.", "module."};
// Classes of a denoiser with a VACE, as diffusers, the original repository and VideoX-Fun say it.
inline constexpr const char *kDiffusersVaceClass = "WanVACETransformer3DModel",
                            *kOriginalVaceClass = "VaceWanModel",
                            *kFunVaceClass = "VaceWanTransformer3DModel";

// Numbers of blocks of this width, as the config says them or as published models have them.
int64_t read_heads(const atelier::PartView& view, int64_t width);
double read_eps(const atelier::PartView& view);

// See ComponentRow.
std::optional<atelier::Detection> detect_dit(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields dit_fields(const atelier::Detection& part);
atelier::WeightMap dit_map(const atelier::Detection& part);
std::optional<atelier::Detection> detect_vae(const atelier::TensorIndex& checkpoint);
atelier::ConfigFields vae_fields(const atelier::Detection& part);

}  // namespace wan
