#include "weights.h"

#include <string>
#include <string_view>

#include "atelier/error.h"

#include "vae.h"

namespace qwen_image {

using atelier::Detection;
using atelier::WeightMap;

namespace {

constexpr std::string_view kDitLinears[] = {
    "time_text_embed.timestep_embedder.linear_1",
    "time_text_embed.timestep_embedder.linear_2",
    "img_in",
    "txt_in",
    "transformer_blocks.{}.img_mod.1",
    "transformer_blocks.{}.attn.to_q",
    "transformer_blocks.{}.attn.to_k",
    "transformer_blocks.{}.attn.to_v",
    "transformer_blocks.{}.attn.add_q_proj",
    "transformer_blocks.{}.attn.add_k_proj",
    "transformer_blocks.{}.attn.add_v_proj",
    "transformer_blocks.{}.attn.to_out.0",
    "transformer_blocks.{}.attn.to_add_out",
    "transformer_blocks.{}.img_mlp.net.0.proj",
    "transformer_blocks.{}.img_mlp.net.2",
    "transformer_blocks.{}.txt_mod.1",
    "transformer_blocks.{}.txt_mlp.net.0.proj",
    "transformer_blocks.{}.txt_mlp.net.2",
    "norm_out.linear",
    "proj_out",
};

constexpr std::string_view kDitNorms[] = {
    "txt_norm.weight",
    "transformer_blocks.{}.attn.norm_q.weight",
    "transformer_blocks.{}.attn.norm_k.weight",
    "transformer_blocks.{}.attn.norm_added_q.weight",
    "transformer_blocks.{}.attn.norm_added_k.weight",
};

constexpr std::string_view kTextWeights[] = {
    "embed_tokens.weight",
    "layers.{}.input_layernorm.weight",
    "layers.{}.self_attn.q_proj.weight",
    "layers.{}.self_attn.q_proj.bias",
    "layers.{}.self_attn.k_proj.weight",
    "layers.{}.self_attn.k_proj.bias",
    "layers.{}.self_attn.v_proj.weight",
    "layers.{}.self_attn.v_proj.bias",
    "layers.{}.self_attn.o_proj.weight",
    "layers.{}.post_attention_layernorm.weight",
    "layers.{}.mlp.gate_proj.weight",
    "layers.{}.mlp.up_proj.weight",
    "layers.{}.mlp.down_proj.weight",
    "norm.weight",
};

WeightMap dit_map() {
  WeightMap map;
  for (const std::string_view layer : kDitLinears) {
    for (const char* weight : {".weight", ".bias"}) {
      const std::string name = std::string(layer) + weight;
      map.push_back({name, name});
    }
  }
  for (const std::string_view norm : kDitNorms)
    map.push_back({std::string(norm), std::string(norm)});
  return map;
}

WeightMap text_map(const std::string& spelling) {
  const bool disk = spelling == "disk";
  const std::string stem = disk ? "model." : "model.language_model.";
  WeightMap map;
  for (const std::string_view weight : kTextWeights) {
    map.push_back({stem + std::string(weight), std::string(weight)});
  }
  map.push_back({"lm_head.weight"});
  map.push_back({disk ? "visual.*" : "model.visual.*"});
  return map;
}

struct Renamed {
  std::string_view from, to;
};

std::string replaced(std::string name, std::string_view from, std::string_view to) {
  if (const size_t at = name.find(from); at != std::string::npos) name.replace(at, from.size(), to);
  return name;
}

// The original spelling of a VAE weight. `per_block` entries are in one block of the decoder, its
// upsampler included.
std::string original_name(const std::string& path, int64_t per_block) {
  static constexpr Renamed kTop[] = {
      {"encoder.conv_in.", "encoder.conv1."},   {"decoder.conv_in.", "decoder.conv1."},
      {"encoder.conv_out.", "encoder.head.2."}, {"decoder.conv_out.", "decoder.head.2."},
      {"encoder.norm_out.", "encoder.head.0."}, {"decoder.norm_out.", "decoder.head.0."},
      {"post_quant_conv.", "conv2."},           {"quant_conv.", "conv1."},
  };
  static constexpr Renamed kStems[] = {
      {".mid_block.resnets.0.", ".middle.0."},
      {".mid_block.attentions.0.", ".middle.1."},
      {".mid_block.resnets.1.", ".middle.2."},
      {"encoder.down_blocks.", "encoder.downsamples."},
  };
  static constexpr Renamed kInBlock[] = {
      {".norm1.", ".residual.0."}, {".conv1.", ".residual.2."},       {".norm2.", ".residual.3."},
      {".conv2.", ".residual.6."}, {".conv_shortcut.", ".shortcut."},
  };
  for (const auto& [from, to] : kTop) {
    if (path.starts_with(from)) return replaced(path, from, to);
  }
  std::string name = path;
  for (const auto& [from, to] : kStems) name = replaced(name, from, to);
  for (const auto& [from, to] : kInBlock) name = replaced(name, from, to);

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

WeightMap vae_map(const Detection& part) {
  const VaeConfig config = vae_config(part);
  Vae vae(config);
  WeightMap map;
  vae.visit_weights([&](const std::string& path, atelier::Weight&) {
    map.push_back(
        {part.spelling == "original" ? original_name(path, config.res_blocks + 2) : path, path});
  });
  return map;
}

}  // namespace

WeightMap weight_map(const Detection& part) {
  if (part.component == "dit") return dit_map();
  if (part.component == "text_encoder") return text_map(part.spelling);
  if (part.component == "vae") return vae_map(part);
  throw atelier::Error(atelier::ErrorCode::kInternal, "no weight table for " + part.component);
}

}  // namespace qwen_image
