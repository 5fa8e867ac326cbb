#include "config.h"

#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"
#include "atelier/parts/causal_vae.h"

#include "dancer.h"

namespace wan {

using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartSpelling;
using atelier::PartView;
using atelier::refuse_kind;
using atelier::TensorIndex;
using std::to_string;

namespace {

constexpr int64_t kPublishedHeadDim = 128;
constexpr const char* kKnownKinds =
    "text-to-video and image-to-video checkpoints are loaded so far";

// Checkpoints of the same ancestry that this code does not run.
constexpr atelier::UnsupportedKind kUnsupported[] = {
    {"vace_blocks.0.norm3.weight", "a VACE of Wan", kKnownKinds},
    {"vace_blocks.0.norm2.weight", "a VACE of Wan", kKnownKinds},
    {"control_adapter.conv.weight", "a Wan-Fun DiT with a camera", kKnownKinds},
    {"ref_conv.weight", "a Wan-Fun DiT with a reference", kKnownKinds},
    {"casual_audio_encoder.weights", "Wan2.2-S2V", kKnownKinds},
    {"pose_patch_embedding.weight", "Wan2.2-Animate", kKnownKinds},
};

constexpr std::string_view kPrefixes[] = {
    "", "model.diffusion_model.", "diffusion_model.", "transformer.", "model.", "module."};
constexpr std::string_view kOriginalMarkers[] = {"blocks.0.cross_attn.norm_k.weight"};
constexpr std::string_view kDiffusersMarkers[] = {
    "condition_embedder.text_embedder.linear_1.weight"};

void read_heads(const PartView& view, DitConfig& c) {
  const TensorIndex& index = view.index();
  auto heads = index.config_integer("num_heads");
  if (!heads) heads = index.config_integer("num_attention_heads");
  c.heads = heads ? *heads : c.width / kPublishedHeadDim;
  if (c.heads < 1 || c.width % c.heads != 0 || c.head_dim() % 2 != 0 || c.head_dim() < 6)
    view.refuse("has " + to_string(c.width) + " channels for " + to_string(c.heads) + " heads",
                kOwnConfig);
}

// What models that are shown images have: an image encoder's rows, and channels of what is known.
void read_images(const PartView& view, const PartSpelling& names, DitConfig& c) {
  const std::string norm =
      names.of("img_emb.proj.0.weight", "condition_embedder.image_embedder.norm1.weight");
  const std::string positions =
      names.of("img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed");
  c.image_width = view.contains(norm) ? view.dim(norm, 0) : 0;
  c.image_rows = view.contains(positions) ? view.dim(positions, 1) : 0;
  const bool is_given = c.given_channels == c.channels + kFrameStride;
  const int64_t with_control = c.given_channels - c.channels;  // latents of a control video
  if (with_control == c.channels || with_control == c.channels + kFrameStride)
    refuse_kind("a Wan-Fun DiT with a control video", kKnownKinds);
  if (is_given || (c.given_channels == 0 && c.image_width == 0)) return;
  refuse_kind("a Wan DiT with " + to_string(c.channels + c.given_channels) + " input and " +
                  to_string(c.channels) + " output channels" +
                  (c.image_width > 0 ? " that is shown images" : ""),
              kKnownKinds);
}

DitConfig read_dit(const PartView& view, const PartSpelling& names) {
  const std::string block = "blocks.0.";
  DitConfig c;
  c.layers = view.block_count(names.of("blocks.{}.modulation", "blocks.{}.scale_shift_table"));
  c.width = view.dim("patch_embedding.weight", 0);
  c.patch = view.dim("patch_embedding.weight", 3);
  c.mlp_width = view.dim(block + names.of("ffn.0.weight", "ffn.net.0.proj.weight"), 0);
  c.text_width = view.dim(
      names.of("text_embedding.0.weight", "condition_embedder.text_embedder.linear_1.weight"), 1);
  c.time_width = view.dim(
      names.of("time_embedding.0.weight", "condition_embedder.time_embedder.linear_1.weight"), 1);
  c.channels = view.parts(names.of("head.head.weight", "proj_out.weight"), 0, c.patch * c.patch);
  c.given_channels = view.dim("patch_embedding.weight", 1) - c.channels;
  read_images(view, names, c);
  if (dances(view)) read_dance(view, c);
  if (view.dim("patch_embedding.weight", 2) != 1 || c.time_width % 2 != 0)
    view.refuse("has patches of several frames, or an odd width of time");
  view.require_config(
      (c.width == 1536 || c.width == 3072 || c.width == 5120) && c.text_width == 4096,
      "num_heads and eps");
  read_heads(view, c);
  c.norm_eps = view.index().config_real("eps").value_or(1e-6);
  if (!(c.norm_eps >= 0)) view.refuse("has an eps below 0 in its config", kOwnConfig);
  return c;
}

std::string_view variant_of(const DitConfig& c) {
  if (c.music_channels > 0) return kDancerLocal;
  if (c.image_rows > 0) return "wan2.1-i2v-14b-flf2v";
  if (c.image_width > 0) return c.width < 5120 ? "wan2.1-i2v-1.3b" : "wan2.1-i2v-14b";
  if (c.given_channels > 0) return "wan2.2-i2v-a14b";
  if (c.channels == kWideChannels) return kWide;
  return c.width < 5120 ? "wan2.1-t2v-1.3b" : "wan2.1-t2v-14b";
}

}  // namespace

std::optional<Detection> detect_dit(const TensorIndex& checkpoint) {
  const auto names =
      atelier::find_spelling(checkpoint, kPrefixes, kOriginalMarkers, kDiffusersMarkers);
  if (!names) return std::nullopt;
  const PartView view(checkpoint, names->prefix, "DiT");
  if (!dances(view)) view.refuse_kinds(kUnsupported);
  view.refuse_quantised();
  const DitConfig config = read_dit(view, *names);
  Detection part = atelier::detection_of("dit", names->name(), config, names->prefix);
  part.variant = variant_of(config);
  return part;
}

std::optional<Detection> detect_vae(const TensorIndex& checkpoint) {
  const auto file = atelier::parts::find_causal_vae(checkpoint);
  return file ? std::optional(atelier::parts::detect_causal_vae(checkpoint, *file)) : std::nullopt;
}

}  // namespace wan
