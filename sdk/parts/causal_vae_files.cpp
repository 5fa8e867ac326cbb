// How files hold the causal video autoencoder: names, shapes, config.
#include <algorithm>
#include <array>

#include "atelier/error.h"
#include "atelier/part_view.h"
#include "atelier/parts/causal_vae.h"

namespace atelier::parts {

const std::vector<double> kCausalVaeMean = {-0.7571, -0.7089, -0.9113, 0.1075,  -0.1745, 0.9653,
                                            -0.1517, 1.5508,  0.4134,  -0.0715, 0.5517,  -0.3632,
                                            -0.1922, -0.9497, 0.2503,  -0.2921};
const std::vector<double> kCausalVaeStd = {2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
                                           2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579,
                                           1.6382, 1.1253, 2.8251, 1.9160};

namespace {

// Statistics of the 48 published channels.
const std::vector<double> kMean48 = {
    -0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174,  0.1838,  0.1557,  -0.1382, 0.0542,
    0.2813,  0.0891,  0.1570,  -0.0098, 0.0375,  -0.1825, -0.2246, -0.1207, -0.0698, 0.5109,
    0.2665,  -0.2108, -0.2158, 0.2502,  -0.2055, -0.0322, 0.1109,  0.1567,  -0.0729, 0.0899,
    -0.2799, -0.1230, -0.0313, -0.1649, 0.0117,  0.0723,  -0.2839, -0.2083, -0.0520, 0.3748,
    0.0152,  0.1957,  0.1433,  -0.2944, 0.3573,  -0.0548, -0.1681, -0.0667};
const std::vector<double> kStd48 = {
    0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901,
    0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659,
    0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093, 0.5709, 0.6065, 0.6415, 0.4944,
    0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744};

constexpr std::string_view kPrefixes[] = {"", "vae.", "model.", "first_stage_model."};

std::string conv_in(const CausalVaeFile& file) {
  return file.is_original ? "encoder.conv1.weight" : "encoder.conv_in.weight";
}

// The widths of a stack's levels in its order, each one's from its first block.
std::vector<int64_t> level_widths(const PartView& view, const std::string& first_block) {
  std::vector<int64_t> widths;
  for (size_t i = 0;; ++i) {
    std::string name = first_block;
    name.replace(name.find("{}"), 2, std::to_string(i));
    if (!view.contains(name)) return widths;
    widths.push_back(view.dim(name, 0));
  }
}

// What goes around a level is a mean of whole groups of channels, or whole copies of them.
void check_shortcuts(const PartView& view, const CausalVaeConfig& c) {
  int64_t down = c.base_width, up = c.decoder_widths.back();
  for (size_t i = 0; i < c.widths.size(); ++i) {
    const bool is_last = i + 1 == c.widths.size();
    const size_t level = c.widths.size() - 1 - i;
    const int64_t cells = is_last         ? 1
                          : c.temporal[i] ? 8
                                          : 4,
                  copies = is_last                 ? up
                           : c.temporal[level - 1] ? 8
                                                   : 4;
    const int64_t up_width = c.decoder_widths[level];
    if (down * cells % c.widths[i] != 0 || up_width * copies % up != 0)
      view.refuse("has levels of widths that do not divide one another");
    down = c.widths[i];
    up = up_width;
  }
}

// Levels with blocks of their own numbers.
void read_residual_levels(const PartView& view, bool is_original, CausalVaeConfig& c) {
  const std::string down = is_original ? "encoder.downsamples." : "encoder.down_blocks.",
                    inside = is_original ? ".downsamples." : ".resnets.",
                    conv = is_original ? ".residual.2.weight" : ".conv1.weight";
  c.widths = level_widths(view, down + "{}" + inside + "0" + conv);
  c.decoder_widths =
      level_widths(view, is_original ? "decoder.upsamples.{}.upsamples.0.residual.2.weight"
                                     : "decoder.up_blocks.{}.resnets.0.conv1.weight");
  std::ranges::reverse(c.decoder_widths);
  const auto resnet = [&](int64_t j) { return down + "0" + inside + std::to_string(j) + conv; };
  while (view.contains(resnet(c.res_blocks))) ++c.res_blocks;
  for (size_t i = 0; i + 1 < c.widths.size(); ++i) {
    const std::string step = is_original ? inside + std::to_string(c.res_blocks) : ".downsampler";
    c.temporal.push_back(view.contains(down + std::to_string(i) + step + ".time_conv.weight"));
  }
  if (c.decoder_widths.size() != c.widths.size())
    view.refuse("has " + std::to_string(c.widths.size()) + " levels that encode and " +
                std::to_string(c.decoder_widths.size()) + " that decode");
  check_shortcuts(view, c);
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
  if (c.mean.empty() && c.std.empty() && c.channels == std::ssize(kMean48)) {
    c.mean = kMean48;
    c.std = kStd48;
  }
  if (std::ssize(c.mean) != c.channels || std::ssize(c.std) != c.channels ||
      std::any_of(c.std.begin(), c.std.end(), [](double s) { return !(s > 0); })) {
    view.refuse(
        "has " + std::to_string(c.channels) + " latent channels and not as many constants for them",
        "put its config.json with latents_mean and latents_std beside it");
  }
}

// The original spelling of a weight.
std::string original_name(const std::string& path, const CausalVaeConfig& c) {
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
  if (c.is_residual) {
    const std::string down = ".downsamples." + std::to_string(c.res_blocks) + ".",
                      up = ".upsamples." + std::to_string(c.res_blocks + 1) + ".";
    const bool encodes = name.starts_with("encoder.downsamples.");
    return renamed(
        name, std::array<Renamed, 4>{{{".downsampler.", down},
                                      {".upsampler.", up},
                                      {"decoder.up_blocks.", "decoder.upsamples."},
                                      {".resnets.", encodes ? ".downsamples." : ".upsamples."}}});
  }

  // The decoder's blocks and their upsamplers are numbered through: up_blocks.1.resnets.2 is
  // upsamples.6.
  const int64_t per_block = c.res_blocks + 2;
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
  // Other autoencoders have resnets of these names, and norms with weights.
  struct Marked {
    std::string_view tensor;
    bool is_original, is_residual;
  };
  static constexpr Marked kMarked[] = {
      {"encoder.down_blocks.0.conv1.weight", false, false},
      {"encoder.down_blocks.0.resnets.0.norm1.gamma", false, true},
      {"encoder.downsamples.0.residual.2.weight", true, false},
      {"encoder.downsamples.0.downsamples.0.residual.2.weight", true, true},
  };
  for (const Marked& marked : kMarked) {
    const auto prefix = find_prefix(checkpoint, kPrefixes, {&marked.tensor, 1});
    if (!prefix) continue;
    CausalVaeFile file = {*prefix, marked.is_original, marked.is_residual, 0};
    file.image_channels = PartView(checkpoint, *prefix, "VAE").dim(conv_in(file), 1);
    return file;
  }
  return std::nullopt;
}

Detection detect_causal_vae(const TensorIndex& checkpoint, const CausalVaeFile& file) {
  CausalVaeConfig c{};
  if (file.image_channels == 4) c.pixel_channels = 4;
  const auto values = [&c] { return c.pixel_channels * c.patch * c.patch; };  // of a patch
  while (values() < file.image_channels) ++c.patch;
  if (file.image_channels != values()) {
    refuse_kind("a VAE for images of " + std::to_string(file.image_channels) + " channels",
                "three channels are read, and four");
  }
  const PartView view(checkpoint, file.prefix, "VAE");
  view.refuse_quantised();
  c.is_residual = file.is_residual;
  c.channels = view.dim(file.is_original ? "conv2.weight" : "post_quant_conv.weight", 0);
  c.base_width = view.dim(conv_in(file), 0);
  if (file.is_residual) {
    read_residual_levels(view, file.is_original, c);
  } else {
    read_levels(view, file.is_original, c);
  }
  using Widths = std::vector<int64_t>;
  const bool is_small = c.channels == 16 && c.base_width == 96 &&
                        c.widths == Widths{96, 192, 384, 384} && !file.is_residual;
  const bool is_large = c.channels == 48 && c.base_width == 160 &&
                        c.widths == Widths{160, 320, 640, 640} &&
                        c.decoder_widths == Widths{256, 512, 1024, 1024};
  view.require_config(c.res_blocks == 2 && (is_small || is_large), "latents_mean and latents_std");
  read_latent_constants(view, c);
  return detection_of_causal_vae(c, file.is_original ? "original" : "diffusers", file.prefix);
}

Detection detection_of_causal_vae(const CausalVaeConfig& config, std::string spelling,
                                  std::string prefix) {
  Detection part = detection_of("vae", std::move(spelling), config, std::move(prefix));
  if (config.pixel_channels == 3) part.config.erase(CausalVaeConfig::kPixelChannels);
  return part;
}

CausalVaeConfig causal_vae_config(const Detection& part) {
  Detection whole = part;
  whole.config.try_emplace(CausalVaeConfig::kPixelChannels, int64_t{3});
  return config_of<CausalVaeConfig>(whole);
}

std::unique_ptr<nn::Module> make_causal_vae(const Detection& part) {
  return std::make_unique<CausalVae>(causal_vae_config(part));
}

ConfigFields causal_vae_fields(const Detection& part, std::vector<ConfigValue> class_names) {
  const auto c = causal_vae_config(part);
  std::vector<double> multiples;
  for (const int64_t width : c.widths)
    multiples.push_back(static_cast<double>(width) / static_cast<double>(c.base_width));
  const int64_t decoder_width = c.up_widths().front() * c.base_width / c.widths.front();
  std::vector<ConfigValue> decoder_base = {decoder_width};
  if (decoder_width == c.base_width) decoder_base.emplace_back(nullptr);
  ConfigFields fields;
  fields.of_diffusers(std::move(class_names))
      .ignored({"dropout"})
      .told("base_dim", {c.base_width})
      .told("z_dim", {c.channels})
      .told("dim_mult", {multiples})
      .told("num_res_blocks", {c.res_blocks})
      .told("temperal_downsample", {std::vector<double>(c.temporal.begin(), c.temporal.end())})
      .fixed("attn_scales", {std::vector<double>()})
      .told("input_channels", {c.pixel_channels})
      .read({"latents_mean", "latents_std"})
      // Fields of one of diffusers' two classes alone, which has another form, too.
      .told("is_residual", {c.is_residual})
      .told("patch_size", {c.patch == 1 ? ConfigValue(nullptr) : ConfigValue(c.patch)})
      .told("in_channels", {c.pixel_channels * c.patch * c.patch})
      .told("out_channels", {c.pixel_channels * c.patch * c.patch})
      .told("decoder_base_dim", decoder_base)
      .ignored({"scale_factor_spatial", "scale_factor_temporal"});
  return fields;
}

WeightMap causal_vae_map(const Detection& part) {
  const auto config = causal_vae_config(part);
  CausalVae vae(config);
  if (part.spelling != "original") return named_weights(vae);
  return named_weights(vae, [&](const std::string& path) { return original_name(path, config); });
}

Detection tiny_causal_vae() {
  return detection_of_causal_vae({.channels = 16,
                                  .widths = {8, 16, 32, 32},
                                  .base_width = 8,
                                  .res_blocks = 2,
                                  .temporal = {false, true, true},
                                  .mean = kCausalVaeMean,
                                  .std = kCausalVaeStd},
                                 "diffusers");
}

}  // namespace atelier::parts
