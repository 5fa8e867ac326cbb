// How files hold the causal video autoencoder: names, shapes, config.
#include <algorithm>

#include "atelier/error.h"
#include "atelier/part_view.h"

#include "shared/causal_vae.h"

namespace atelier::shared {

const std::vector<double> kCausalVaeMean = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                            -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                            -0.1922, -0.9497, 0.2503,  -0.2921};
const std::vector<double> kCausalVaeStd = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
                                           2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
                                           1.6382, 1.1253, 2.8251, 1.9160};

namespace {

constexpr std::string_view kPrefixes[] = {"", "vae.", "model.", "first_stage_model."};

std::string conv_in(const CausalVaeFile& file) {
  return file.is_original ? "encoder.conv1.weight" : "encoder.conv_in.weight";
}

// The encoder's blocks are numbered through its levels.
void read_levels(const PartView& view, bool is_original, CausalVaeConfig& c) {
  const std::string stem = is_original ? "encoder.downsamples." : "encoder.down_blocks.";
  const std::string conv = is_original ? ".residual.2.weight" : ".conv1.weight";
  int64_t width = 0;
  for (int64_t n = 0;; ++n) {
    const std::string block = stem + std::to_string(n);
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
}

void read_latent_constants(const PartView& view, CausalVaeConfig& c) {
  c.mean = view.index().config_reals("latents_mean").value_or(std::vector<double>());
  c.std = view.index().config_reals("latents_std").value_or(std::vector<double>());
  if (c.mean.empty() && c.std.empty() && c.channels == std::ssize(kCausalVaeMean)) {
    c.mean = kCausalVaeMean;
    c.std = kCausalVaeStd;
  }
  if (std::ssize(c.mean) != c.channels || std::ssize(c.std) != c.channels ||
      std::any_of(c.std.begin(), c.std.end(), [](double s) { return !(s > 0); })) {
    view.refuse(
        "has " + std::to_string(c.channels) + " latent channels and not as many constants for them",
        "put its config.json with latents_mean and latents_std beside it");
  }
}

// The original spelling of a weight. `per_block` entries are in one block of the decoder, its
// upsampler included.
std::string original_name(const std::string& path, int64_t per_block) {
  static constexpr Renamed kTop[] = {
      {"encoder.conv_in.", "encoder.conv1."},   {"decoder.conv_in.", "decoder.conv1."},
      {"encoder.conv_out.", "encoder.head.2."}, {"decoder.conv_out.", "decoder.head.2."},
      {"encoder.norm_out.", "encoder.head.0."}, {"decoder.norm_out.", "decoder.head.0."},
      {"post_quant_conv.", "conv2."},           {"quant_conv.", "conv1."},
  };
  static constexpr Renamed kInBlock[] = {
      {".mid_block.resnets.0.", ".middle.0."},
      {".mid_block.attentions.0.", ".middle.1."},
      {".mid_block.resnets.1.", ".middle.2."},
      {"encoder.down_blocks.", "encoder.downsamples."},
      {".norm1.", ".residual.0."},
      {".conv1.", ".residual.2."},
      {".norm2.", ".residual.3."},
      {".conv2.", ".residual.6."},
      {".conv_shortcut.", ".shortcut."},
  };
  for (const Renamed& row : kTop) {
    if (path.starts_with(row.from)) return renamed(path, {&row, 1});
  }
  const std::string name = renamed(path, kInBlock);

  // The decoder's blocks and their upsamplers are numbered through: up_blocks.1.resnets.2 is
  // upsamples.6.
  constexpr std::string_view kUp = "decoder.up_blocks.";
  if (!name.starts_with(kUp)) return name;
  size_t end = 0;
  const int64_t block = std::stoll(name.substr(kUp.size()), &end);
  std::string rest = name.substr(kUp.size() + end);
  int64_t entry = per_block - 1;  // the upsampler
  if (constexpr std::string_view kRes = ".resnets."; rest.starts_with(kRes)) {
    rest.erase(0, kRes.size());
    entry = std::stoll(rest, &end);
    rest.erase(0, end);
  } else {
    rest.erase(0, std::string_view(".upsamplers.0").size());
  }
  return "decoder.upsamples." + std::to_string(block * per_block + entry) + rest;
}

}  // namespace

std::optional<CausalVaeFile> find_causal_vae(const TensorIndex& checkpoint) {
  for (const bool is_original : {false, true}) {
    const std::string_view marker = is_original ? "encoder.downsamples.0.residual.2.weight"
                                                : "encoder.down_blocks.0.conv1.weight";
    const auto prefix = find_prefix(checkpoint, kPrefixes, {&marker, 1});
    if (!prefix) continue;
    CausalVaeFile file = {*prefix, is_original, 0};
    file.image_channels = PartView(checkpoint, *prefix, "VAE").dim(conv_in(file), 1);
    return file;
  }
  return std::nullopt;
}

Detection detect_causal_vae(const TensorIndex& checkpoint, const CausalVaeFile& file) {
  if (file.image_channels != 3) {
    refuse_kind("a VAE for images of " + std::to_string(file.image_channels) + " channels",
                "three channels are read");
  }
  const PartView view(checkpoint, file.prefix, "VAE");
  view.refuse_quantised();
  CausalVaeConfig c{};
  c.channels = view.dim(file.is_original ? "conv2.weight" : "post_quant_conv.weight", 0);
  c.base_width = view.dim(conv_in(file), 0);
  read_levels(view, file.is_original, c);
  view.require_config(c.channels == 16 && c.base_width == 96 && c.res_blocks == 2 &&
                          c.widths == std::vector<int64_t>{96, 192, 384, 384},
                      "latents_mean and latents_std");
  read_latent_constants(view, c);
  return detection_of("vae", file.is_original ? "original" : "diffusers", c, file.prefix);
}

ConfigFields causal_vae_fields(const Detection& part, std::vector<ConfigValue> class_names) {
  const auto c = config_of<CausalVaeConfig>(part);
  std::vector<double> multiples;
  for (const int64_t width : c.widths)
    multiples.push_back(static_cast<double>(width) / static_cast<double>(c.base_width));
  ConfigFields fields;
  fields.of_diffusers(std::move(class_names))
      .ignored({"dropout"})
      .told("base_dim", {c.base_width})
      .told("z_dim", {c.channels})
      .told("dim_mult", {multiples})
      .told("num_res_blocks", {c.res_blocks})
      .told("temperal_downsample", {std::vector<double>(c.temporal.begin(), c.temporal.end())})
      .fixed("attn_scales", {std::vector<double>()})
      .fixed("input_channels", {3})
      .read({"latents_mean", "latents_std"})
      // Fields of one of diffusers' two classes alone, which has another form, too.
      .fixed("is_residual", {false})
      .fixed("patch_size", {nullptr})
      .fixed("in_channels", {3})
      .fixed("out_channels", {3})
      .told("decoder_base_dim", {c.base_width, nullptr})
      .ignored({"scale_factor_spatial", "scale_factor_temporal"});
  return fields;
}

WeightMap causal_vae_map(const Detection& part) {
  const auto config = config_of<CausalVaeConfig>(part);
  CausalVae vae(config);
  if (part.spelling != "original") return named_weights(vae);
  return named_weights(
      vae, [&](const std::string& path) { return original_name(path, config.res_blocks + 2); });
}

}  // namespace atelier::shared
