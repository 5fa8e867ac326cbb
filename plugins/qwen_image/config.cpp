#include "config.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "atelier/error.h"

namespace qwen_image {

using atelier::Detection;
using atelier::Error;
using atelier::ErrorCode;
using atelier::TensorIndex;

const std::vector<double> kLatentMean = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                         -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                         -0.1922, -0.9497, 0.2503,  -0.2921};
const std::vector<double> kLatentStd = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
                                        2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
                                        1.6382, 1.1253, 2.8251, 1.9160};

namespace {

constexpr std::string_view kVariants[] = {"qwen-image", "qwen-image-2512"};

// A foreign name, in quotes and escaped.
std::string quote(std::string_view name) {
  return nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string text(int64_t value) {
  return std::to_string(value);
}

// A checkpoint whose names are read behind a prefix.
class View {
 public:
  View(const TensorIndex& index, std::string prefix, std::string what)
      : index_(index), prefix_(std::move(prefix)), what_(std::move(what)) {}

  const TensorIndex& index() const { return index_; }
  const std::string& prefix() const { return prefix_; }
  bool contains(const std::string& name) const { return index_.contains(prefix_ + name); }
  int64_t blocks(const std::string& pattern) const { return index_.block_count(prefix_ + pattern); }

  int64_t dim(const std::string& name, size_t axis) const {
    const atelier::TensorMeta* meta = index_.find(prefix_ + name);
    if (!meta) {
      throw Error(ErrorCode::kNotFound,
                  "tensor " + quote(prefix_ + name) + ": missing from the " + what_,
                  "pass every shard of the checkpoint, or its index file");
    }
    if (axis >= meta->shape.size() || meta->shape[axis] < 1) {
      throw Error(ErrorCode::kInvalidArgument, "tensor " + quote(prefix_ + name) + ": has " +
                                                   std::to_string(meta->shape.size()) +
                                                   " axes, which is no weight of the " + what_);
    }
    return meta->shape[axis];
  }

  [[noreturn]] void refuse(const std::string& message, const std::string& hint = {}) const {
    throw Error(ErrorCode::kInvalidArgument, "the " + what_ + " " + message, hint);
  }

  // The length of `name` along `axis`, which is a multiple of `unit`, in units.
  int64_t parts(const std::string& name, size_t axis, int64_t unit, const std::string& hint) const {
    const int64_t length = dim(name, axis);
    if (unit < 1 || length % unit != 0) {
      refuse("has " + text(length) + " in tensor " + quote(prefix_ + name) + ", no multiple of " +
                 text(unit),
             hint);
    }
    return length / unit;
  }

 private:
  const TensorIndex& index_;
  std::string prefix_, what_;
};

std::optional<std::string> find_prefix(const TensorIndex& index,
                                       std::initializer_list<const char*> prefixes,
                                       std::initializer_list<const char*> markers) {
  for (const char* prefix : prefixes) {
    for (const char* marker : markers) {
      if (index.contains(std::string(prefix) + marker)) return prefix;
    }
  }
  return std::nullopt;
}

// Throws when the weights are quantised: only plain floating tensors, 8-bit ones included, are
// read.
void refuse_quantised(const TensorIndex& index, const std::string& what) {
  static constexpr std::pair<std::string_view, std::string_view> kMarkers[] = {
      {".comfy_quant", "ComfyUI's mixed precision (comfy_quant)"},
      {"scaled_fp8", "scaled FP8 (scaled_fp8)"},
      {".scale_weight", "scaled FP8 (scale_weight)"},
      {".weight_scale", "FP8 or INT8 with scales (weight_scale)"},
      {".weight_scale_2", "NVFP4 (weight_scale_2)"},
      {".weight_scale_inv", "block-scaled FP8 (weight_scale_inv)"},
      {"bitsandbytes__nf4", "bitsandbytes NF4"},
      {"bitsandbytes__fp4", "bitsandbytes FP4"},
      {".absmax", "bitsandbytes NF4 or FP4 (absmax)"},
      {".quant_map", "bitsandbytes NF4 or FP4 (quant_map)"},
      {".SCB", "bitsandbytes INT8 (SCB)"},
      {".wscales", "SVDQuant (wscales)"},
      {".qweight", "packed integers (qweight)"},
  };
  static constexpr std::string_view kHint = "use the bf16, fp16, fp32 or plain fp8 file";
  for (const auto& [name, meta] : index.tensors()) {
    for (const auto& [marker, format] : kMarkers) {
      if (name.ends_with(marker)) {
        throw Error(
            ErrorCode::kUnsupported,
            "tensor " + quote(name) + ": the " + what + " is quantised as " + std::string(format),
            std::string(kHint));
      }
    }
  }
  for (const auto& [name, meta] : index.tensors()) {
    if (name.ends_with(".weight") && !at::isFloatingType(meta.dtype)) {
      throw Error(ErrorCode::kUnsupported,
                  "tensor " + quote(name) + ": the " + what + " is quantised, its weights are " +
                      c10::toString(meta.dtype),
                  std::string(kHint));
    }
  }
}

// `fields` are read, because shapes do not tell them. Without a config they are those of the
// published model, in a checkpoint that has its widths.
void require_config(const View& view, bool has_published_widths, const char* fields) {
  if (has_published_widths || !view.index().config().empty()) return;
  view.refuse(std::string("has no config, and other widths than the published one, so nothing "
                          "tells its ") +
                  fields,
              "put its config.json beside it, or name the folder of its model too");
}

[[noreturn]] void unsupported(const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kUnsupported, "this is " + what, hint);
}

constexpr const char* kTextToImageOnly =
    "text-to-image checkpoints (Qwen-Image, Qwen-Image-2512) are loaded so far";

// Frame, row and column channels of a head: of 128, 16, 56 and 56.
std::array<int64_t, 3> rope_axes(const View& view, int64_t head_dim) {
  std::vector<int64_t> axes = {head_dim / 8, head_dim / 16 * 7, head_dim / 16 * 7};
  const auto given = view.index().config_integers("axes_dims_rope");
  if (given) axes = *given;
  int64_t sum = 0;
  bool good = axes.size() == 3;
  for (int64_t axis : axes) {
    good = good && axis > 0 && axis % 2 == 0 && axis <= head_dim;
    sum += axis;
  }
  if (!good || sum != head_dim) {
    view.refuse("has heads of " + text(head_dim) + ", which " +
                    (given ? "axes_dims_rope in config.json does not add up to"
                           : "do not tell how positions are split over them"),
                given ? "axes_dims_rope takes three even numbers that add up to the head's width"
                      : "put the checkpoint's config.json with axes_dims_rope beside it");
  }
  return {axes[0], axes[1], axes[2]};
}

Detection detect_dit(const View& view) {
  const TensorIndex& index = view.index();
  const auto is_on = [&](const char* key) { return index.config_flag(key).value_or(false); };
  if (view.contains("controlnet_x_embedder.weight") ||
      view.contains("controlnet_blocks.0.weight")) {
    unsupported("a Qwen-Image ControlNet", "ControlNets are not loaded yet; leave it out");
  }
  if (view.contains("time_text_embed.addition_t_embedding.weight") ||
      is_on("use_additional_t_cond") || is_on("use_layer3d_rope")) {
    unsupported("Qwen-Image-Layered", kTextToImageOnly);
  }
  if (view.contains("__index_timestep_zero__") || index.contains("__index_timestep_zero__") ||
      is_on("zero_cond_t")) {
    unsupported("Qwen-Image-Edit-2511", kTextToImageOnly);
  }
  refuse_quantised(index, "DiT");

  const std::string block = "transformer_blocks.0.";
  DitConfig c;
  c.layers = view.blocks("transformer_blocks.{}.img_mod.1.weight");
  c.width = view.dim("img_in.weight", 0);
  c.head_dim = view.dim(block + "attn.norm_q.weight", 0);
  c.heads = view.parts("img_in.weight", 0, c.head_dim, "the file may be damaged");
  c.mlp_width = view.dim(block + "img_mlp.net.0.proj.weight", 0);
  c.text_width = view.dim("txt_in.weight", 1);
  c.channels = view.parts("img_in.weight", 1, kPatch * kPatch, "the file may be damaged");
  const int64_t out = view.dim("proj_out.weight", 0);
  if (out != c.channels * kPatch * kPatch) {
    unsupported("a Qwen-Image DiT with " + text(c.channels * kPatch * kPatch) + " input and " +
                    text(out) + " output channels",
                kTextToImageOnly);
  }
  require_config(view,
                 c.width == 3072 && c.head_dim == 128 && c.mlp_width == 12288 &&
                     c.text_width == 3584 && c.channels == 16,
                 "axes_dims_rope");
  c.axes = rope_axes(view, c.head_dim);
  return to_detection(c);
}

// Where the config keeps the fields of the language model: newer files in an object of their own.
std::string text_home(const TensorIndex& index) {
  return atelier::has_fields(index.config(), "text_config.") ? "text_config." : "";
}

// Which layers look back a window only. What is not said is as transformers has it.
void read_windows(const View& view, const std::string& home, TextEncoderConfig& c) {
  const TensorIndex& index = view.index();
  const std::string flag = home + "use_sliding_window", window = home + "sliding_window";
  const bool is_used =
      !index.has_null(flag) && index.config_flag(flag).value_or(false) && !index.has_null(window);
  c.window = is_used ? index.config_integer(window).value_or(4096) : 0;
  const int64_t first =
      is_used ? index.config_integer(home + "max_window_layers").value_or(80) : c.layers;
  for (int64_t i = 0; i < c.layers; ++i) c.windowed.push_back(i >= first);
  const std::string key = home + "layer_types";
  if (const auto types = index.has_null(key) ? std::nullopt : index.config_texts(key)) {
    c.windowed.clear();
    for (const std::string& type : *types) {
      if (type != "sliding_attention" && type != "full_attention")
        unsupported("a text encoder with layer_types of " + quote(type),
                    "sliding_attention and full_attention are computed");
      c.windowed.push_back(type == "sliding_attention");
    }
  }
  const bool any = std::find(c.windowed.begin(), c.windowed.end(), true) != c.windowed.end();
  if (std::ssize(c.windowed) != c.layers || first < 0 || c.window < 0 || (any && c.window == 0)) {
    view.refuse("has " + text(c.layers) + " layers, which " + key + " or " + window +
                    " in its config does not fit",
                "put the checkpoint's own config.json beside it");
  }
}

Detection detect_text_encoder(const View& view) {
  const TensorIndex& index = view.index();
  refuse_quantised(index, "text encoder");
  constexpr const char* kHint = "put the checkpoint's own config.json beside it";
  const std::string home = text_home(index);

  const std::string layer = "layers.0.";
  TextEncoderConfig c;
  c.layers = view.blocks("layers.{}.self_attn.q_proj.weight");
  c.width = view.dim("embed_tokens.weight", 1);
  c.vocabulary = view.dim("embed_tokens.weight", 0);
  c.mlp_width = view.dim(layer + "mlp.gate_proj.weight", 0);
  const std::string q = layer + "self_attn.q_proj.weight", k = layer + "self_attn.k_proj.weight";
  require_config(
      view,
      c.width == 3584 && c.mlp_width == 18944 && view.dim(q, 0) == 3584 && view.dim(k, 0) == 512,
      "num_attention_heads, rope_theta and rms_norm_eps");
  if (const auto heads = index.config_integer(home + "num_attention_heads")) {
    c.heads = *heads;
    c.head_dim = view.parts(q, 0, c.heads, kHint);
  } else {
    c.head_dim = 128;
    c.heads = view.parts(q, 0, c.head_dim, kHint);
  }
  c.kv_heads = view.parts(k, 0, c.head_dim, kHint);
  if (c.heads % c.kv_heads != 0 || c.head_dim % 2 != 0) {
    view.refuse("has " + text(c.heads) + " heads of " + text(c.head_dim) + " and keys for " +
                    text(c.kv_heads),
                kHint);
  }
  read_windows(view, home, c);
  c.rope_theta = atelier::rope_theta(index, home).value_or(1e6);
  c.eps = index.config_real(home + "rms_norm_eps").value_or(1e-6);
  if (!(c.rope_theta > 0) || !(c.eps >= 0))
    view.refuse("has rope_theta or rms_norm_eps below 0 in its config", kHint);
  return to_detection(c);
}

Detection detect_vae(const View& view, bool original) {
  const TensorIndex& index = view.index();
  const auto name = [&](const char* diffusers, const char* other) {
    return std::string(original ? other : diffusers);
  };
  const std::string conv_in = name("encoder.conv_in.weight", "encoder.conv1.weight");
  const int64_t image_channels = view.dim(conv_in, 1);
  if (image_channels == 4) unsupported("the VAE of Qwen-Image-Layered (RGBA)", kTextToImageOnly);
  if (image_channels != 3) {
    unsupported("a VAE for images of " + text(image_channels) + " channels",
                "three channels are read");
  }
  refuse_quantised(index, "VAE");

  VaeConfig c;
  c.channels = view.dim(name("post_quant_conv.weight", "conv2.weight"), 0);
  c.base_width = view.dim(conv_in, 0);
  c.res_blocks = 0;
  const std::string stem = name("encoder.down_blocks.", "encoder.downsamples.");
  const std::string conv = name(".conv1.weight", ".residual.2.weight");
  int64_t width = 0;
  for (int64_t n = 0;; ++n) {
    const std::string block = stem + text(n);
    if (view.contains(block + conv)) {
      width = view.dim(block + conv, 0);
      if (c.widths.empty()) ++c.res_blocks;
    } else if (view.contains(block + ".resample.1.weight")) {
      c.widths.push_back(width);
      c.temporal.push_back(view.contains(block + ".time_conv.weight"));
    } else {
      break;
    }
  }
  c.widths.push_back(width);
  require_config(view,
                 c.channels == 16 && c.base_width == 96 && c.res_blocks == 2 &&
                     c.widths == std::vector<int64_t>{96, 192, 384, 384},
                 "latents_mean and latents_std");
  c.mean = index.config_reals("latents_mean").value_or(std::vector<double>());
  c.std = index.config_reals("latents_std").value_or(std::vector<double>());
  if (c.mean.empty() && c.std.empty() && c.channels == std::ssize(kLatentMean)) {
    c.mean = kLatentMean;
    c.std = kLatentStd;
  }
  if (std::ssize(c.mean) != c.channels || std::ssize(c.std) != c.channels ||
      std::any_of(c.std.begin(), c.std.end(), [](double s) { return !(s > 0); })) {
    view.refuse("has " + text(c.channels) + " latent channels and not as many constants for them",
                "put its config.json with latents_mean and latents_std beside it");
  }
  Detection part = to_detection(c);
  part.spelling = original ? "original" : "diffusers";
  return part;
}

std::optional<Detection> detect_any(const TensorIndex& index) {
  Detection part;
  if (const auto prefix = find_prefix(
          index, {"", "model.diffusion_model.", "diffusion_model.", "transformer.", "module."},
          {"transformer_blocks.0.img_mod.1.weight", "transformer_blocks.0.img_mod.1.qweight",
           "controlnet_blocks.0.x_rms.weight"})) {
    const View view(index, *prefix, "DiT");
    if (view.contains("controlnet_blocks.0.x_rms.weight")) {
      unsupported("a blockwise Qwen-Image ControlNet",
                  "ControlNets are not loaded yet; leave it out");
    }
    part = detect_dit(view);
    part.prefix = *prefix;
    return part;
  }
  for (const auto& [spelling, stem] :
       {std::pair("memory", "model.language_model."), std::pair("disk", "model.")}) {
    const std::string marker = std::string(stem) + "layers.0.self_attn.q_proj.bias";
    if (const auto prefix = find_prefix(index, {"", "text_encoder."}, {marker.c_str()})) {
      part = detect_text_encoder(View(index, *prefix + stem, "text encoder"));
      part.prefix = *prefix;
      part.spelling = spelling;
      return part;
    }
  }
  const std::initializer_list<const char*> kVaePrefixes = {"", "vae.", "model.",
                                                           "first_stage_model."};
  for (const bool original : {false, true}) {
    const char* marker =
        original ? "encoder.downsamples.0.residual.2.weight" : "encoder.down_blocks.0.conv1.weight";
    if (const auto prefix = find_prefix(index, kVaePrefixes, {marker})) {
      part = detect_vae(View(index, *prefix, "VAE"), original);
      part.prefix = *prefix;
      return part;
    }
  }
  return std::nullopt;
}

std::vector<double> reals(const Detection& part, const std::string& key) {
  const auto found = part.config.find(key);
  const auto* values =
      found == part.config.end() ? nullptr : std::get_if<std::vector<double>>(&found->second);
  if (!values) throw Error(ErrorCode::kInternal, part.component + ": no " + key + " detected");
  return *values;
}

template <class T>
std::vector<double> to_reals(const T& values) {
  return {values.begin(), values.end()};
}

std::vector<int64_t> to_integers(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

std::vector<bool> to_flags(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

Detection make(const char* component, TensorIndex::Config config) {
  return {component, std::string(kVariants[0]), "", "diffusers", std::move(config)};
}

}  // namespace

std::optional<Detection> detect(const TensorIndex& checkpoint, const atelier::DetectHint& hint) {
  std::optional<Detection> part = detect_any(checkpoint);
  if (!part) return part;
  if (!hint.component.empty() && hint.component != part->component) {
    throw Error(ErrorCode::kInvalidArgument, "the tensors are those of the " + part->component +
                                                 ", and it was given as " + quote(hint.component));
  }
  if (hint.variant.empty()) return part;
  if (std::find(std::begin(kVariants), std::end(kVariants), hint.variant) == std::end(kVariants)) {
    const bool ours = hint.variant.starts_with("qwen-image-");
    throw Error(ours ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
                "variant " + quote(hint.variant) + (ours ? " is not run yet" : " is not known"),
                "variants are qwen-image and qwen-image-2512");
  }
  part->variant = hint.variant;
  return part;
}

DitConfig dit_config(const Detection& part) {
  const std::vector<int64_t> axes = to_integers(reals(part, "axes"));
  return {.layers = part.integer("layers"),
          .width = part.integer("width"),
          .heads = part.integer("heads"),
          .head_dim = part.integer("head_dim"),
          .mlp_width = part.integer("mlp_width"),
          .text_width = part.integer("text_width"),
          .channels = part.integer("channels"),
          .axes = {axes.at(0), axes.at(1), axes.at(2)}};
}

Detection to_detection(const DitConfig& c) {
  return make("dit", {{"layers", c.layers},
                      {"width", c.width},
                      {"heads", c.heads},
                      {"head_dim", c.head_dim},
                      {"mlp_width", c.mlp_width},
                      {"text_width", c.text_width},
                      {"channels", c.channels},
                      {"axes", to_reals(c.axes)}});
}

TextEncoderConfig text_encoder_config(const Detection& part) {
  return {.layers = part.integer("layers"),
          .width = part.integer("width"),
          .heads = part.integer("heads"),
          .kv_heads = part.integer("kv_heads"),
          .head_dim = part.integer("head_dim"),
          .mlp_width = part.integer("mlp_width"),
          .vocabulary = part.integer("vocabulary"),
          .window = part.integer("window"),
          .windowed = to_flags(reals(part, "windowed")),
          .rope_theta = part.real("rope_theta"),
          .eps = part.real("eps")};
}

Detection to_detection(const TextEncoderConfig& c) {
  Detection part = make("text_encoder", {{"layers", c.layers},
                                         {"width", c.width},
                                         {"heads", c.heads},
                                         {"kv_heads", c.kv_heads},
                                         {"head_dim", c.head_dim},
                                         {"mlp_width", c.mlp_width},
                                         {"vocabulary", c.vocabulary},
                                         {"window", c.window},
                                         {"windowed", to_reals(c.windowed)},
                                         {"rope_theta", c.rope_theta},
                                         {"eps", c.eps}});
  part.spelling = "disk";
  return part;
}

VaeConfig vae_config(const Detection& part) {
  VaeConfig c;
  c.channels = part.integer("channels");
  c.widths = to_integers(reals(part, "widths"));
  c.base_width = part.integer("base_width");
  c.res_blocks = part.integer("res_blocks");
  c.temporal = to_flags(reals(part, "temporal"));
  c.mean = reals(part, "latents_mean");
  c.std = reals(part, "latents_std");
  return c;
}

Detection to_detection(const VaeConfig& c) {
  return make("vae", {{"channels", c.channels},
                      {"widths", to_reals(c.widths)},
                      {"base_width", c.base_width},
                      {"res_blocks", c.res_blocks},
                      {"temporal", to_reals(c.temporal)},
                      {"latents_mean", c.mean},
                      {"latents_std", c.std}});
}

}  // namespace qwen_image
