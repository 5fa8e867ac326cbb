#include "config.h"

#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"

namespace lumina2 {

using atelier::Detection;
using atelier::kOwnConfig;
using atelier::PartSpelling;
using atelier::PartView;
using atelier::TensorIndex;
using std::to_string;

namespace {

constexpr std::string_view kOriginalMarkers[] = {"cap_embedder.1.weight",
                                                 "layers.0.adaLN_modulation.1.weight"};
constexpr std::string_view kDiffusersMarkers[] = {"time_caption_embed.caption_embedder.1.weight",
                                                  "layers.0.norm1.linear.weight",
                                                  "layers.0.attn.to_q.weight"};

// Models of the same ancestry have some of these names too: Z-Image pads text and image with
// tokens of its own and has one modulation without a nonlinearity in front, others read a second
// text encoder or images.
constexpr const char* kOthers[] = {"cap_pad_token", "x_pad_token", "siglip_embedder.0.weight",
                                   "clip_text_pooled_proj.0.weight",
                                   "ref_image_patch_embedder.weight"};

// Attention's numbers, of a fused layer or of three.
void read_heads(const PartView& view, bool is_original, DitConfig& c) {
  const std::string attention = is_original ? "layers.0.attention." : "layers.0.attn.";
  c.head_dim = view.dim(attention + (is_original ? "q_norm.weight" : "norm_q.weight"), 0);
  c.heads = view.parts("x_embedder.weight", 0, c.head_dim);
  if (is_original) {
    const int64_t rows = view.parts(attention + "qkv.weight", 0, c.head_dim);
    c.kv_heads = (rows - c.heads) / 2;
    if (rows != c.heads + 2 * c.kv_heads)
      view.refuse("has keys for " + to_string(rows) + " heads in all");
  } else {
    c.kv_heads = view.parts(attention + "to_k.weight", 0, c.head_dim);
  }
  view.check_heads(c.heads, c.kv_heads, c.head_dim);
}

DitConfig read_dit(const PartView& view, const PartSpelling& names) {
  const TensorIndex& index = view.index();
  const std::string modulation = names.of(".adaLN_modulation.1.weight", ".norm1.linear.weight");
  DitConfig c;
  c.layers = view.block_count("layers.{}" + modulation);
  c.refiners = view.block_count("noise_refiner.{}" + modulation);
  c.width = view.dim("x_embedder.weight", 0);
  read_heads(view, names.is_original, c);
  c.mlp_width = view.dim(
      names.of("layers.0.feed_forward.w1.weight", "layers.0.feed_forward.linear_1.weight"), 0);
  c.text_width = view.dim(
      names.of("cap_embedder.1.weight", "time_caption_embed.caption_embedder.1.weight"), 1);
  c.time_width = view.dim(
      names.of("t_embedder.mlp.0.weight", "time_caption_embed.timestep_embedder.linear_1.weight"),
      0);
  c.patch = index.config_integer("patch_size").value_or(kPublishedPatch);
  if (c.patch < 1 || c.patch > 64)
    view.refuse("has a patch_size of " + to_string(c.patch), kOwnConfig);
  const int64_t cells = c.patch * c.patch;
  c.channels = view.parts("x_embedder.weight", 1, cells);
  const int64_t out =
      view.dim(names.of("final_layer.linear.weight", "norm_out.linear_2.weight"), 0);
  if (out != c.channels * cells) {
    atelier::refuse_kind("a DiT with " + to_string(c.channels * cells) + " input and " +
                             to_string(out) + " output values a token",
                         "only a velocity of the latents' own channels can be sampled");
  }
  view.require_config(c.width == 2304 && c.head_dim == 96 && c.kv_heads == 8 &&
                          c.mlp_width == 9216 && c.text_width == 2304 && c.channels == 16,
                      "axes_dim_rope and norm_eps");
  const int64_t third = c.head_dim % 6 == 0 ? c.head_dim / 3 : 0;
  c.axes = view.rope_axes("axes_dim_rope", c.head_dim, {third, third, third});
  c.norm_eps = index.config_real("norm_eps").value_or(1e-5);
  if (!(c.norm_eps >= 0)) view.refuse("has a norm_eps below 0 in its config", kOwnConfig);
  return c;
}

}  // namespace

std::optional<Detection> detect_dit(const TensorIndex& checkpoint) {
  const auto names = atelier::find_spelling(checkpoint, atelier::kDenoiserPrefixes,
                                            kOriginalMarkers, kDiffusersMarkers);
  if (!names) return std::nullopt;
  const PartView view(checkpoint, names->prefix, "DiT");
  const auto is_there = [&](const char* tensor) { return view.contains(tensor); };
  if (std::ranges::any_of(kOthers, is_there)) return std::nullopt;
  view.refuse_quantised();
  return atelier::detection_of("dit", names->name(), read_dit(view, *names), names->prefix);
}

}  // namespace lumina2
