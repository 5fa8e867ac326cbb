// What a checkpoint of this family is, and the architecture numbers that its tensors tell.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "atelier/architecture.h"
#include "atelier/part_view.h"

namespace qwen_image {

inline constexpr int64_t kPatch = 2;  // latent cells per denoiser token along each side
inline constexpr std::string_view kVariants[] = {
    "qwen-image",           "qwen-image-2512",           "qwen-image-edit",
    "qwen-image-edit-2509", "qwen-image-edit-2511",      "firered-image-edit",
    "qwen-image-layered",   "qwen-image-layered-control"};
// The variants that change pictures, as a glob; that of one picture; that whose references are
// clean.
inline constexpr std::string_view kEditVariants = "*-edit*", kOnePictureVariant = "qwen-image-edit",
                                  kCleanReferencesVariant = "qwen-image-edit-2511";
// Variants that make an image of a text, and the input that is a picture beside it.
inline constexpr std::string_view kTextVariants = "qwen-image|qwen-image-2512",
                                  kContextVariants = "qwen-image|qwen-image-2512|*-layered*";
// Variants that make pictures with transparency of one; all that make an image without it.
inline constexpr std::string_view kLayeredVariants = "qwen-image-layered*",
                                  kLayeredVariant = "qwen-image-layered",
                                  kLayeredControlVariant = "qwen-image-layered-control",
                                  kOpaqueVariants = "qwen-image|qwen-image-2512|*-edit*";
inline constexpr const char* kContext = "context_image";
inline bool edits(std::string_view variant) {
  return variant.find("-edit") != std::string_view::npos;
}
inline bool is_layered(std::string_view variant) {
  return variant.starts_with(kLayeredVariant);
}
// Components of ControlNets.
inline constexpr const char *kBlockwise = "blockwise_controlnet", *kControlNet = "controlnet";
inline constexpr const char* kControlNetMark = "controlnet_x_embedder.weight";  // a tensor of one
inline constexpr const char* kCleanMark = "__index_timestep_zero__";  // a tensor of repacked files
inline constexpr const char* kCleanReferences = "clean_references";   // of DitConfig
inline constexpr const char* kLayered = "layered";                    // of DitConfig
inline constexpr const char* kAddedTime = "time_text_embed.addition_t_embedding";  // a layer of it
inline constexpr const char* kSections = "sections";  // of TextEncoderConfig

struct DitConfig {
  int64_t layers, width, heads, head_dim, mlp_width, text_width;
  int64_t channels;             // of the latents, in and out
  std::array<int64_t, 3> axes;  // channels of a head that carry frame, row and column
  // References are modulated as clean ones, whatever the noise level is.
  bool clean_references = false;
  // Several pictures are made together, each at a place of its own, and the last reference stands
  // in front of them.
  bool layered = false;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("head_dim", head_dim), fields("mlp_width", mlp_width), fields("text_width", text_width);
    fields("channels", channels), fields("axes", axes);
    fields(kCleanReferences, clean_references), fields(kLayered, layered);
  }
};

struct TextEncoderConfig {
  int64_t layers, width, heads, kv_heads, head_dim, mlp_width, vocabulary;
  int64_t window;              // tokens that some layers look back, the token itself among them
  std::vector<bool> windowed;  // of each layer; as published none
  double rope_theta, eps;
  // Pairs of channels of a head that turn with time, row and column of a picture's tokens.
  std::array<int64_t, 3> sections;

  template <class Fields>
  void visit(Fields&& fields) {
    fields("layers", layers), fields("width", width), fields("heads", heads);
    fields("kv_heads", kv_heads), fields("head_dim", head_dim), fields("mlp_width", mlp_width);
    fields("vocabulary", vocabulary), fields("window", window), fields("windowed", windowed);
    fields("rope_theta", rope_theta), fields("eps", eps), fields(kSections, sections);
  }
};

// The spelling of GGUF files, and what the text encoder's files call a weight behind their stem.
inline constexpr const char* kLlamaCpp = "llama_cpp";
std::string spelled(std::string_view spelling, const std::string& weight);

// What a detection holds, and back. Numbers that may differ since pictures are seen are in it only
// where they do: checkpoints of training and caches know a model by its detection.
atelier::Detection detection_of_dit(const DitConfig& config, std::string prefix = {});
DitConfig dit_config(const atelier::Detection& part);
atelier::Detection detection_of_text_encoder(const TextEncoderConfig& config, std::string spelling,
                                             std::string prefix = {});
TextEncoderConfig text_encoder_config(const atelier::Detection& part);
// Whether a DiT's detection says that its references are clean.
bool has_clean_references(const atelier::Detection& dit);
// Whether it makes layers.
bool makes_layers(const atelier::Detection& dit);

// Fields of the text encoder's config that say TextEncoderConfig::sections.
inline constexpr const char* kSectionFields[] = {"rope_scaling.mrope_section",
                                                 "rope_parameters.mrope_section"};

// The numbers of a denoiser's blocks, which a ControlNet of diffusers has, too.
DitConfig read_blocks(const atelier::PartView& view);
// See ComponentRow::detect.
std::optional<atelier::Detection> detect_dit(const atelier::TensorIndex& checkpoint);
std::optional<atelier::Detection> detect_text_encoder(const atelier::TensorIndex& checkpoint);
std::optional<atelier::Detection> detect_vae(const atelier::TensorIndex& checkpoint);

// See ModelFamily::config_fields.
atelier::ConfigFields dit_fields(const atelier::Detection& part);
atelier::ConfigFields text_encoder_fields(const atelier::Detection& part);
atelier::ConfigFields vae_fields(const atelier::Detection& part);

}  // namespace qwen_image
