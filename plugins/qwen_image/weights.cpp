#include "weights.h"

#include <string>
#include <string_view>

#include "config.h"

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

}  // namespace

WeightMap dit_map(const Detection& part) {
  WeightMap map;
  for (const std::string_view layer : kDitLinears) {
    for (const char* weight : {".weight", ".bias"}) {
      const std::string name = std::string(layer) + weight;
      map.push_back({name, name});
    }
  }
  for (const std::string_view norm : kDitNorms)
    map.push_back({std::string(norm), std::string(norm)});
  const std::string added = std::string(kAddedTime) + ".weight";
  if (makes_layers(part)) map.push_back({added, added});
  map.push_back({kCleanMark});
  return map;
}

WeightMap text_encoder_map(const Detection& part) {
  const bool is_gguf = part.spelling == kLlamaCpp, disk = part.spelling == "disk";
  const std::string stem = is_gguf ? "" : disk ? "model." : "model.language_model.";
  WeightMap map;
  for (const std::string_view weight : kTextWeights) {
    const std::string path(weight);
    map.push_back({stem + spelled(part.spelling, path), path});
  }
  if (is_gguf) {
    map.push_back({"output.weight"});
    return map;
  }
  map.push_back({"lm_head.weight"});
  map.push_back({disk ? "visual.*" : "model.visual.*"});
  return map;
}

}  // namespace qwen_image
