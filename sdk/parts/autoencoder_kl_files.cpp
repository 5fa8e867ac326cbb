// How files hold the image autoencoder: names, shapes, config.
#include "atelier/config_fields.h"
#include "atelier/part_view.h"
#include "atelier/parts/autoencoder_kl.h"

namespace atelier::parts {
namespace {

// Names of the two spellings that tell the architecture.
struct Spelling {
  const char* name;
  const char* level;      // of the encoder
  const char* up_level;   // of the decoder
  const char* res;        // of a level
  const char* attention;  // of a level: the first one's queries
  const char* middle;     // queries in the middle of the encoder
};
constexpr Spelling kSpellings[] = {
    {"diffusers", "encoder.down_blocks.", "decoder.up_blocks.", ".resnets.",
     ".attentions.0.to_q.weight", "encoder.mid_block.attentions.0.to_q.weight"},
    {"original", "encoder.down.", "decoder.up.", ".block.", ".attn.0.q.weight",
     "encoder.mid.attn_1.q.weight"},
};
constexpr const char* kPrefixes[] = {"", "vae.", "first_stage_model."};

// Where attention is, and how its products are stored.
void read_attention(const PartView& view, const Spelling& spelling, AutoencoderKLConfig& c) {
  const auto attends = [&](const std::string& queries) {
    const TensorMeta* found = view.index().find(view.prefix() + queries);
    c.conv_attention = c.conv_attention || (found != nullptr && found->shape.size() == 4);
    return found != nullptr;
  };
  const bool is_original = spelling.name == std::string_view("original");
  const auto levels = std::ssize(c.widths);
  for (int64_t level = 0; level < levels; ++level) {
    // The original spelling counts the decoder's levels from the finest.
    const int64_t up = is_original ? levels - 1 - level : level;
    c.down_attention.push_back(
        attends(spelling.level + std::to_string(level) + spelling.attention));
    c.up_attention.push_back(attends(spelling.up_level + std::to_string(up) + spelling.attention));
  }
  c.mid_attention = attends(spelling.middle);
}

AutoencoderKLConfig read_config(const PartView& view, const Spelling& spelling) {
  const TensorIndex& index = view.index();
  AutoencoderKLConfig c;
  c.widths.clear();
  for (int64_t level = 0;; ++level) {
    const std::string res = spelling.level + std::to_string(level) + spelling.res;
    const int64_t blocks = view.block_count(res + "{}.conv1.weight");
    if (blocks == 0) break;
    if (level == 0) c.res_blocks = blocks;
    c.widths.push_back(view.dim(res + "0.conv1.weight", 0));
  }
  c.channels = view.dim("decoder.conv_in.weight", 1);
  view.require_config(
      c.channels == 16 && c.res_blocks == 2 && c.widths == AutoencoderKLConfig().widths,
      "norm_num_groups, scaling_factor and shift_factor");
  c.groups = index.config_integer("norm_num_groups").value_or(c.groups);
  read_attention(view, spelling, c);
  c.quant_conv = view.contains("quant_conv.weight");
  c.post_quant_conv = view.contains("post_quant_conv.weight");
  c.scale = index.config_real("scaling_factor").value_or(c.scale);
  c.shift =
      index.has_null("shift_factor") ? 0 : index.config_real("shift_factor").value_or(c.shift);
  for (const int64_t width : c.widths) {
    if (c.groups < 1 || width % c.groups != 0 || !(c.scale > 0)) {
      view.refuse("has a level of width " + std::to_string(width) + " and norms of " +
                      std::to_string(c.groups) + " groups",
                  "put its own config.json with norm_num_groups beside it");
    }
  }
  return c;
}

// The original spelling of a weight's path. The decoder counts its levels from the finest.
std::string original_name(std::string path, int64_t levels) {
  static constexpr Renamed kParts[] = {
      {".mid_block.resnets.0.", ".mid.block_1."},
      {".mid_block.resnets.1.", ".mid.block_2."},
      {".mid_block.attentions.0.", ".mid.attn_1."},
      {".attentions.", ".attn."},
      {".group_norm.", ".norm."},
      {".to_q.", ".q."},
      {".to_k.", ".k."},
      {".to_v.", ".v."},
      {".to_out.0.", ".proj_out."},
      {".conv_norm_out.", ".norm_out."},
      {".down_blocks.", ".down."},
      {".downsamplers.0.conv.", ".downsample.conv."},
      {".upsamplers.0.conv.", ".upsample.conv."},
      {".resnets.", ".block."},
      {".conv_shortcut.", ".nin_shortcut."},
  };
  path = renamed(std::move(path), kParts);
  constexpr std::string_view kUp = ".up_blocks.";
  const size_t at = path.find(kUp);
  if (at == std::string::npos) return path;
  size_t digits = 0;
  const int64_t level = levels - 1 - std::stoll(path.substr(at + kUp.size()), &digits);
  return path.substr(0, at) + ".up." + std::to_string(level) +
         path.substr(at + kUp.size() + digits);
}

}  // namespace

std::optional<Detection> detect_autoencoder_kl(const TensorIndex& checkpoint) {
  for (const char* prefix : kPrefixes) {
    for (const Spelling& spelling : kSpellings) {
      const std::string first = std::string(prefix) + spelling.level + "0" + spelling.res;
      if (!checkpoint.contains(first + "0.conv1.weight")) continue;
      // With convolutions on the latents it is another model's, unless a config says how its
      // latents are scaled.
      if (checkpoint.contains(std::string(prefix) + "quant_conv.weight") &&
          !checkpoint.config().contains("scaling_factor"))
        continue;
      const PartView view(checkpoint, prefix, "VAE");
      return detection_of("vae", spelling.name, read_config(view, spelling), prefix);
    }
  }
  return std::nullopt;
}

WeightMap autoencoder_kl_map(const Detection& part) {
  const auto config = config_of<AutoencoderKLConfig>(part);
  AutoencoderKL autoencoder(config);
  if (part.spelling != "original") return named_weights(autoencoder);
  return named_weights(autoencoder, [&](const std::string& path) {
    return original_name(path, std::ssize(config.widths));
  });
}

Detection tiny_autoencoder_kl() {
  return detection_of("vae", "diffusers",
                      AutoencoderKLConfig{.widths = {32, 32, 64, 64}, .res_blocks = 1});
}

ConfigFields autoencoder_kl_fields(const Detection& part) {
  const auto c = config_of<AutoencoderKLConfig>(part);
  const auto kinds = [&](const std::vector<bool>& attends, const std::string& kind) {
    std::vector<std::string> names(c.widths.size(), kind);
    for (size_t i = 0; i < attends.size(); ++i) names[i] = (attends[i] ? "Attn" : "") + kind;
    return names;
  };
  ConfigFields fields;
  fields.of_diffusers({"AutoencoderKL"})
      .ignored({"sample_size", "force_upcast"})
      .fixed("in_channels", {3})
      .fixed("out_channels", {3})
      .told("latent_channels", {c.channels})
      .told("block_out_channels", {std::vector<double>(c.widths.begin(), c.widths.end())})
      .told("layers_per_block", {c.res_blocks})
      .told("down_block_types", {kinds(c.down_attention, "DownEncoderBlock2D")})
      .told("up_block_types", {kinds(c.up_attention, "UpDecoderBlock2D")})
      .fixed("act_fn", {"silu", "swish"})
      .told("mid_block_add_attention", {c.mid_attention})
      .told("use_quant_conv", {c.quant_conv})
      .told("use_post_quant_conv", {c.post_quant_conv})
      .fixed("latents_mean", {nullptr})
      .fixed("latents_std", {nullptr})
      .read({"norm_num_groups", "scaling_factor", "shift_factor"});
  return fields;
}

}  // namespace atelier::parts
