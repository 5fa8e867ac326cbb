// How files of LongCat-Video are told, and what its config.json may say.
#include "atelier/config_fields.h"
#include "atelier/error.h"
#include "atelier/part_view.h"

#include "config.h"
#include "dit.h"
#include "longcat.h"

namespace wan {

using atelier::ConfigFields;
using atelier::Detection;

namespace {

constexpr std::string_view kLongCatMarkers[] = {"blocks.0.cross_attn.kv_linear.weight"};
constexpr atelier::UnsupportedKind kOtherLongCats[] = {
    {"blocks.0.audio_cross_attn.q_linear.weight", "LongCat-Video-Avatar",
     "LongCat-Video is loaded so far"},
};

LongCatConfig read_longcat(const atelier::PartView& view) {
  LongCatConfig c;
  c.layers = view.block_count("blocks.{}.attn.qkv.weight");
  c.width = view.dim("x_embedder.proj.weight", 0);
  c.channels = view.dim("x_embedder.proj.weight", 1);
  c.patch = view.dim("x_embedder.proj.weight", 3);
  c.heads = view.parts("blocks.0.attn.proj.weight", 0, view.dim("blocks.0.attn.q_norm.weight", 0));
  c.mlp_width = view.dim("blocks.0.ffn.w1.weight", 0);
  c.text_width = view.dim("y_embedder.y_proj.0.weight", 1);
  c.time_width = view.dim("t_embedder.mlp.0.weight", 1);
  c.modulation_width = view.dim("t_embedder.mlp.2.weight", 0);
  if (view.dim("x_embedder.proj.weight", 2) != 1 || c.time_width % 2 != 0)
    view.refuse("has patches of several frames, or an odd width of time");
  if (c.width % c.heads != 0 || c.head_dim() % 2 != 0 || c.head_dim() < 6)
    view.refuse("has heads of " + std::to_string(c.head_dim()) + " channels");
  return c;
}

}  // namespace

bool is_longcat(const Detection& part) {
  return part.config.contains("modulation_width");
}

std::optional<Detection> detect_longcat(const atelier::TensorIndex& checkpoint) {
  const auto prefix = atelier::find_prefix(checkpoint, atelier::kDenoiserPrefixes, kLongCatMarkers);
  if (!prefix) return std::nullopt;
  const atelier::PartView view(checkpoint, *prefix, "DiT");
  view.refuse_kinds(kOtherLongCats);
  view.refuse_quantised();
  Detection part = atelier::detection_of("dit", "original", read_longcat(view), *prefix);
  part.variant = kLongCat;
  return part;
}

ConfigFields longcat_fields(const Detection& part) {
  const auto c = atelier::config_of<LongCatConfig>(part);
  const auto patch = static_cast<double>(c.patch);
  ConfigFields fields;
  fields.of_diffusers({"LongCatVideoTransformer3DModel"})
      .told("in_channels", {c.channels})
      .told("out_channels", {c.channels})
      .told("hidden_size", {c.width})
      .told("depth", {c.layers})
      .told("num_heads", {c.heads})
      .told("caption_channels", {c.text_width})
      .told("adaln_tembed_dim", {c.modulation_width})
      .told("frequency_embedding_size", {c.time_width})
      .told("patch_size", {std::vector<double>{1, patch, patch}})
      // A missing one means that rows behind a prompt are left out.
      .needed("text_tokens_zero_pad", {true}, {"LongCatVideoTransformer3DModel"})
      .fixed("enable_bsa", {false})
      // Which kernels compute, how much of the attention is left out when that is asked for, how
      // rows are shared out, and a factor of which the tensors tell the product.
      .ignored({"enable_flashattn3", "enable_flashattn2", "enable_xformers", "bsa_params*",
                "cp_split_hw", "mlp_ratio"});
  return fields;
}

std::vector<std::string> longcat_targets() {
  // By its published name the modulation of the last layer is one of them, too.
  std::vector<std::string> targets = {"final_layer.adaLN_modulation.1"};
  for (const char* layer :
       {"adaLN_modulation.1", "attn.qkv", "attn.proj", "cross_attn.q_linear",
        "cross_attn.kv_linear", "cross_attn.proj", "ffn.w1", "ffn.w2", "ffn.w3"})
    targets.push_back(std::string("blocks.*.") + layer);
  return targets;
}

}  // namespace wan
