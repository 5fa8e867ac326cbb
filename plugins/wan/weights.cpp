// The names of published checkpoints.
#include <string>

#include "config.h"
#include "dancer.h"
#include "dit.h"
#include "vace.h"

namespace wan {

using atelier::Detection;
using atelier::Renamed;
using atelier::WeightMap;

namespace {

// The original spelling, which the module has, and diffusers'.
constexpr Renamed kOutsideBlocks[] = {
    {"time_embedding.0.", "condition_embedder.time_embedder.linear_1."},
    {"time_embedding.2.", "condition_embedder.time_embedder.linear_2."},
    {"text_embedding.0.", "condition_embedder.text_embedder.linear_1."},
    {"text_embedding.2.", "condition_embedder.text_embedder.linear_2."},
    {"time_projection.1.", "condition_embedder.time_proj."},
    {"head.modulation", "scale_shift_table"},
    {"head.head.", "proj_out."},
    {"img_emb.proj.0.", "condition_embedder.image_embedder.norm1."},
    {"img_emb.proj.1.", "condition_embedder.image_embedder.ff.net.0.proj."},
    {"img_emb.proj.3.", "condition_embedder.image_embedder.ff.net.2."},
    {"img_emb.proj.4.", "condition_embedder.image_embedder.norm2."},
    {"img_emb.emb_pos", "condition_embedder.image_embedder.pos_embed"},
};

// Only the norm in front of the cross attention has weights.
constexpr Renamed kInBlocks[] = {
    {".before_proj.", ".proj_in."},
    {".after_proj.", ".proj_out."},
    {".modulation", ".scale_shift_table"},
    {".norm3.", ".norm2."},
    {".ffn.0.", ".ffn.net.0.proj."},
    {".ffn.2.", ".ffn.net.2."},
    {".k_img.", ".add_k_proj."},
    {".v_img.", ".add_v_proj."},
    {".norm_k_img.", ".norm_added_k."},
    {".q.", ".to_q."},
    {".k.", ".to_k."},
    {".v.", ".to_v."},
    {".o.", ".to_out.0."},
    {".self_attn.", ".attn1."},
    {".cross_attn.", ".attn2."},
};

// Of Wan2.2-Animate-2.
constexpr Renamed kInDrivenBlocks[] = {
    {".block.", ""},
    {".k_img.", ".add_k_proj."},
    {".v_img.", ".add_v_proj."},
    {".norm_k_img.", ".norm_added_k."},
    {".q.", ".to_q."},
    {".k.", ".to_k."},
    {".v.", ".to_v."},
    {".o.", ".to_out.0."},
};

std::string driven_name(const std::string& path) {
  return path.starts_with("blocks.") ? atelier::renamed(path, kInDrivenBlocks) : path;
}

std::string diffusers_name(const std::string& path) {
  const bool is_in_block = path.starts_with("blocks.") || path.starts_with("vace_blocks.");
  return is_in_block ? atelier::renamed(path, kInBlocks) : atelier::renamed(path, kOutsideBlocks);
}

}  // namespace

WeightMap dit_map(const Detection& part) {
  const auto config = atelier::parts::whole_config_of<DitConfig>(part);
  Dit dit(config);
  if (part.spelling == "original") return atelier::named_weights(dit, dance_name);
  return atelier::named_weights(dit, config.is_driven ? driven_name : diffusers_name);
}

WeightMap vace_map(const Detection& part) {
  Vace vace(atelier::config_of<VaceConfig>(part));
  if (part.spelling == "original") return atelier::named_weights(vace);
  return atelier::named_weights(vace, diffusers_name);
}

}  // namespace wan
