#include "weights.h"

#include <string>
#include <string_view>

#include "config.h"

namespace lumina2 {

using atelier::Detection;
using atelier::WeightMap;

namespace {

struct Renamed {
  std::string_view original, diffusers;
};

constexpr Renamed kOutsideBlocks[] = {
    {"x_embedder.weight", "x_embedder.weight"},
    {"x_embedder.bias", "x_embedder.bias"},
    {"t_embedder.mlp.0.weight", "time_caption_embed.timestep_embedder.linear_1.weight"},
    {"t_embedder.mlp.0.bias", "time_caption_embed.timestep_embedder.linear_1.bias"},
    {"t_embedder.mlp.2.weight", "time_caption_embed.timestep_embedder.linear_2.weight"},
    {"t_embedder.mlp.2.bias", "time_caption_embed.timestep_embedder.linear_2.bias"},
    {"cap_embedder.0.weight", "time_caption_embed.caption_embedder.0.weight"},
    {"cap_embedder.1.weight", "time_caption_embed.caption_embedder.1.weight"},
    {"cap_embedder.1.bias", "time_caption_embed.caption_embedder.1.bias"},
    {"final_layer.adaLN_modulation.1.weight", "norm_out.linear_1.weight"},
    {"final_layer.adaLN_modulation.1.bias", "norm_out.linear_1.bias"},
    {"final_layer.linear.weight", "norm_out.linear_2.weight"},
    {"final_layer.linear.bias", "norm_out.linear_2.bias"},
};

constexpr Renamed kInEveryBlock[] = {
    {"attention.out.weight", "attn.to_out.0.weight"},
    {"attention.q_norm.weight", "attn.norm_q.weight"},
    {"attention.k_norm.weight", "attn.norm_k.weight"},
    {"feed_forward.w1.weight", "feed_forward.linear_1.weight"},
    {"feed_forward.w2.weight", "feed_forward.linear_2.weight"},
    {"feed_forward.w3.weight", "feed_forward.linear_3.weight"},
    {"attention_norm2.weight", "norm2.weight"},
    {"ffn_norm1.weight", "ffn_norm1.weight"},
    {"ffn_norm2.weight", "ffn_norm2.weight"},
};

constexpr Renamed kInModulatedBlocks[] = {
    {"attention_norm1.weight", "norm1.norm.weight"},
    {"adaLN_modulation.1.weight", "norm1.linear.weight"},
    {"adaLN_modulation.1.bias", "norm1.linear.bias"},
};

constexpr Renamed kInPlainBlocks[] = {
    {"attention_norm1.weight", "norm1.weight"},
};

class DitMap {
 public:
  DitMap(const DitConfig& config, bool is_original) : config_(config), is_original_(is_original) {
    add("", kOutsideBlocks);
    for (const char* stem : {"context_refiner.{}.", "noise_refiner.{}.", "layers.{}."}) {
      const bool is_modulated = stem[0] != 'c';
      add_attention(stem);
      add(stem, kInEveryBlock);
      if (is_modulated) {
        add(stem, kInModulatedBlocks);
      } else {
        add(stem, kInPlainBlocks);
      }
    }
    // No forward pass of the published code reads it.
    if (is_original) map_.push_back({"norm_final.weight"});
  }

  WeightMap take() { return std::move(map_); }

 private:
  template <size_t kCount>
  void add(std::string_view stem, const Renamed (&weights)[kCount]) {
    for (const auto& [original, diffusers] : weights) {
      map_.push_back({std::string(stem).append(is_original_ ? original : diffusers),
                      std::string(stem).append(original)});
    }
  }

  void add_attention(const std::string& stem) {
    const std::string qkv = stem + "attention.qkv.weight";
    if (is_original_) {
      map_.push_back({qkv, qkv});
      return;
    }
    map_.push_back({stem + "attn.to_q.weight", qkv, /*axis=*/0, config_.width});
    map_.push_back({stem + "attn.to_k.weight", qkv, /*axis=*/0, config_.kv_width()});
    map_.push_back({stem + "attn.to_v.weight", qkv, /*axis=*/0, config_.kv_width()});
  }

  const DitConfig& config_;
  bool is_original_;
  WeightMap map_;
};

}  // namespace

WeightMap dit_map(const Detection& part) {
  const auto config = atelier::config_of<DitConfig>(part);
  return DitMap(config, part.spelling == "original").take();
}

}  // namespace lumina2
