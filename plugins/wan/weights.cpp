// The names of published checkpoints.
#include <algorithm>
#include <string>

#include "config.h"
#include "dancer.h"
#include "dit.h"
#include "longcat.h"
#include "vace.h"
#include "vap.h"

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

// What hears behind a block is one module here, and there a row in each of two lists.
std::string original_name(const std::string& path) {
  constexpr std::string_view kInjector = "audio_injector.";
  if (!path.starts_with(kInjector)) return dance_name(path);
  const size_t part = path.find('.', kInjector.size()) + 1, layer = path.find('.', part);
  return std::string(kInjector) + path.substr(part, layer - part) + "." +
         path.substr(kInjector.size(), part - kInjector.size()) + path.substr(layer + 1);
}

// Names in the blocks of Wan2.2-Animate-2.
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
  return is_in_block ? atelier::renamed(path, kInBlocks)
                     : atelier::renamed(original_name(path), kOutsideBlocks);
}

// The denoiser's names with "_mot_ref" behind the first one, in blocks behind the third, where
// blocks have the numbers of the denoiser's.
std::string vap_name(const std::string& path) {
  const std::string name = diffusers_name(path);
  size_t end = name.find('.');
  if (!path.starts_with("blocks.")) return name.substr(0, end) + "_mot_ref" + name.substr(end);
  const size_t number = end + 1;
  end = name.find('.', number);
  const int64_t block = std::stoll(name.substr(number, end - number)) * kVapStride;
  const std::string inner = name.substr(end);  // ".attn1.to_q.weight", ".scale_shift_table"
  const size_t dot = std::min(inner.find('.', 1), inner.size());
  return "blocks." + std::to_string(block) + inner.substr(0, dot) + "_mot_ref" + inner.substr(dot);
}

}  // namespace

WeightMap vap_map(const Detection& part) {
  Vap vap(atelier::parts::whole_config_of<DitConfig>(part));
  return atelier::named_weights(vap, vap_name);
}

WeightMap dit_map(const Detection& part) {
  if (is_longcat(part)) {
    LongCat longcat(atelier::config_of<LongCatConfig>(part));
    return atelier::named_weights(longcat);
  }
  const auto config = atelier::parts::whole_config_of<DitConfig>(part);
  Dit dit(config);
  if (part.spelling == "original") return atelier::named_weights(dit, original_name);
  return atelier::named_weights(dit, config.is_driven ? driven_name : diffusers_name);
}

WeightMap vace_map(const Detection& part) {
  Vace vace(atelier::config_of<VaceConfig>(part));
  if (part.spelling == "original") return atelier::named_weights(vace);
  return atelier::named_weights(vace, diffusers_name);
}

}  // namespace wan
