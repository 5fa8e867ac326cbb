#include "config.h"

#include <algorithm>
#include <vector>

#include "atelier/error.h"

#include "autoencoder.h"
#include "gemma2.h"

namespace lumina2 {

using atelier::Detection;
using atelier::Error;
using atelier::ErrorCode;
using atelier::TensorIndex;

namespace {

constexpr const char* kConfigHint = "put the checkpoint's own config.json beside it";

std::string text(int64_t value) {
  return std::to_string(value);
}

[[noreturn]] void refuse(const std::string& message, const std::string& hint = "") {
  throw Error(ErrorCode::kInvalidArgument, "the DiT " + message, hint);
}

// Where and how a DiT is spelled.
struct Names {
  std::string prefix;
  bool is_original = true;

  std::string of(const char* original, const char* diffusers) const {
    return prefix + (is_original ? original : diffusers);
  }
};

// Models of the same ancestry have some of these names too: Z-Image pads text and picture with
// tokens of its own and has one modulation without a nonlinearity in front, others read a second
// text encoder or pictures.
std::optional<Names> find_dit(const TensorIndex& index) {
  static constexpr const char* kPrefixes[] = {"", "model.diffusion_model.", "diffusion_model.",
                                              "transformer.", "module."};
  static constexpr const char* kOthers[] = {
      "cap_pad_token", "x_pad_token", "siglip_embedder.0.weight", "clip_text_pooled_proj.0.weight",
      "ref_image_patch_embedder.weight"};
  for (const char* prefix : kPrefixes) {
    const auto has = [&](const char* name) { return index.contains(std::string(prefix) + name); };
    if (std::any_of(std::begin(kOthers), std::end(kOthers), has)) continue;
    const bool is_original =
        has("cap_embedder.1.weight") && has("layers.0.adaLN_modulation.1.weight");
    const bool is_diffusers = has("time_caption_embed.caption_embedder.1.weight") &&
                              has("layers.0.norm1.linear.weight") &&
                              has("layers.0.attn.to_q.weight");
    if (is_original || is_diffusers) return Names{prefix, is_original};
  }
  return std::nullopt;
}

void refuse_quantised(const TensorIndex& index, const std::string& prefix) {
  for (const auto& [name, meta] : index.tensors()) {
    if (!name.starts_with(prefix) || !name.ends_with(".weight")) continue;
    if (at::isFloatingType(meta.dtype)) continue;
    throw Error(
        ErrorCode::kUnsupported,
        "tensor '" + name + "': the DiT is quantised, its weights are " + c10::toString(meta.dtype),
        "use the bf16, fp16, fp32 or fp8 file");
  }
}

// Channels of a head for text position, row and column: thirds, where nothing else is said.
std::array<int64_t, 3> rope_axes(const TensorIndex& index, int64_t head_dim) {
  const auto given = index.config_integers("axes_dim_rope");
  const std::vector<int64_t> axes =
      given ? *given : std::vector<int64_t>(3, head_dim % 6 == 0 ? head_dim / 3 : 0);
  int64_t sum = 0;
  bool is_good = axes.size() == 3;
  for (const int64_t axis : axes) {
    is_good = is_good && axis > 0 && axis % 2 == 0 && axis <= head_dim;
    sum += axis;
  }
  if (!is_good || sum != head_dim) {
    refuse("has heads of " + text(head_dim) + ", which " +
               (given ? "axes_dim_rope in config.json does not add up to"
                      : "do not tell how positions are split over them"),
           given ? "axes_dim_rope takes three even numbers that add up to the head's width"
                 : kConfigHint);
  }
  return {axes[0], axes[1], axes[2]};
}

// The length of `name`, a multiple of `unit`, in units.
int64_t parts(const TensorIndex& index, const std::string& name, int axis, int64_t unit) {
  const int64_t length = index.dim(name, axis);
  if (unit < 1 || length < unit || length % unit != 0)
    refuse("has " + text(length) + " in tensor '" + name + "', no multiple of " + text(unit));
  return length / unit;
}

Detection detect_dit(const TensorIndex& index, const Names& names) {
  refuse_quantised(index, names.prefix);
  const std::string block = names.prefix + "layers.0.";
  const std::string x_embedder = names.prefix + "x_embedder.weight";
  const std::string time =
      names.of("t_embedder.mlp.0.weight", "time_caption_embed.timestep_embedder.linear_1.weight");
  const std::string attention = block + (names.is_original ? "attention." : "attn.");
  const std::string modulation =
      names.is_original ? ".adaLN_modulation.1.weight" : ".norm1.linear.weight";
  DitConfig c;
  c.layers = index.block_count(names.prefix + "layers.{}" + modulation);
  c.refiners = index.block_count(names.prefix + "noise_refiner.{}" + modulation);
  c.width = index.dim(x_embedder, 0);
  c.head_dim = index.dim(attention + (names.is_original ? "q_norm.weight" : "norm_q.weight"), 0);
  c.heads = parts(index, x_embedder, 0, c.head_dim);
  if (names.is_original) {
    const int64_t rows = parts(index, attention + "qkv.weight", 0, c.head_dim);
    c.kv_heads = (rows - c.heads) / 2;
    if (rows != c.heads + 2 * c.kv_heads) refuse("has keys for " + text(rows) + " heads in all");
  } else {
    c.kv_heads = parts(index, attention + "to_k.weight", 0, c.head_dim);
  }
  if (c.kv_heads < 1 || c.heads % c.kv_heads != 0) {
    refuse("has " + text(c.heads) + " heads of " + text(c.head_dim) + " and keys for " +
           text(c.kv_heads));
  }
  c.mlp_width = index.dim(
      block + (names.is_original ? "feed_forward.w1.weight" : "feed_forward.linear_1.weight"), 0);
  c.text_width = index.dim(
      names.of("cap_embedder.1.weight", "time_caption_embed.caption_embedder.1.weight"), 1);
  c.time_width = index.dim(time, 0);
  c.patch = index.config_integer("patch_size").value_or(kPublishedPatch);
  if (c.patch < 1 || c.patch > 64) refuse("has a patch_size of " + text(c.patch), kConfigHint);
  c.channels = parts(index, x_embedder, 1, c.patch * c.patch);
  const int64_t out =
      index.dim(names.of("final_layer.linear.weight", "norm_out.linear_2.weight"), 0);
  if (out != c.channels * c.patch * c.patch) {
    throw Error(ErrorCode::kUnsupported,
                "this is a DiT with " + text(c.channels * c.patch * c.patch) + " input and " +
                    text(out) + " output values a token",
                "only a velocity of the latents' own channels can be sampled");
  }
  require_config(index,
                 c.width == 2304 && c.head_dim == 96 && c.kv_heads == 8 && c.mlp_width == 9216 &&
                     c.text_width == 2304 && c.channels == 16,
                 "DiT", "axes_dim_rope and norm_eps");
  c.axes = rope_axes(index, c.head_dim);
  c.norm_eps = index.config_real("norm_eps").value_or(1e-5);
  if (!(c.norm_eps >= 0)) refuse("has a norm_eps below 0 in its config", kConfigHint);

  Detection part = to_detection(c);
  part.prefix = names.prefix;
  part.spelling = names.is_original ? "original" : "diffusers";
  return part;
}

std::optional<Detection> detect_any(const TensorIndex& index) {
  if (const auto names = find_dit(index)) return detect_dit(index, *names);
  if (auto part = detect_gemma2(index)) return part;
  return detect_autoencoder(index);
}

}  // namespace

void require_config(const TensorIndex& checkpoint, bool has_published_widths, const char* component,
                    const char* fields) {
  if (has_published_widths || !checkpoint.config().empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string("the ") + component +
                  " has no config, and other widths than the published one, so nothing tells its " +
                  fields,
              "put its config.json beside it, or name the folder of its model too");
}

std::optional<Detection> detect(const TensorIndex& checkpoint, const atelier::DetectHint& hint) {
  std::optional<Detection> part = detect_any(checkpoint);
  if (!part) return part;
  if (!hint.component.empty() && hint.component != part->component) {
    throw Error(ErrorCode::kInvalidArgument, "the tensors are those of the " + part->component +
                                                 ", and it was given as '" + hint.component + "'");
  }
  if (!hint.variant.empty() && hint.variant != kVariant) {
    throw Error(ErrorCode::kInvalidArgument, "variant '" + hint.variant + "' is not known",
                std::string("the variant is ") + kVariant);
  }
  part->variant = kVariant;
  return part;
}

DitConfig dit_config(const Detection& part) {
  const auto found = part.config.find("axes");
  const auto* axes =
      found == part.config.end() ? nullptr : std::get_if<std::vector<double>>(&found->second);
  if (!axes || axes->size() != 3) throw Error(ErrorCode::kInternal, "dit: no axes detected");
  const auto axis = [&](size_t i) { return static_cast<int64_t>((*axes)[i]); };
  return {.layers = part.integer("layers"),
          .refiners = part.integer("refiners"),
          .width = part.integer("width"),
          .heads = part.integer("heads"),
          .kv_heads = part.integer("kv_heads"),
          .head_dim = part.integer("head_dim"),
          .mlp_width = part.integer("mlp_width"),
          .text_width = part.integer("text_width"),
          .time_width = part.integer("time_width"),
          .channels = part.integer("channels"),
          .patch = part.integer("patch"),
          .axes = {axis(0), axis(1), axis(2)},
          .norm_eps = part.real("norm_eps")};
}

Detection to_detection(const DitConfig& c) {
  return {"dit",
          kVariant,
          "",
          "original",
          {{"layers", c.layers},
           {"refiners", c.refiners},
           {"width", c.width},
           {"heads", c.heads},
           {"kv_heads", c.kv_heads},
           {"head_dim", c.head_dim},
           {"mlp_width", c.mlp_width},
           {"text_width", c.text_width},
           {"time_width", c.time_width},
           {"channels", c.channels},
           {"patch", c.patch},
           {"axes", std::vector<double>(c.axes.begin(), c.axes.end())},
           {"norm_eps", c.norm_eps}}};
}

}  // namespace lumina2
