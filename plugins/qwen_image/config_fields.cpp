// What each field of a config.json is to this family. Diffusers and transformers wrote the files.
#include "atelier/config_fields.h"

#include "atelier/error.h"

#include "config.h"

namespace qwen_image {

using atelier::ConfigFields;
using atelier::ConfigValue;
using atelier::Detection;

namespace {

ConfigFields dit_fields(const DitConfig& c) {
  ConfigFields fields;
  fields
      .of_diffusers({"QwenImageTransformer2DModel"})
      // A layer that was left out, and guidance that the published code takes and does not use.
      .ignored({"pooled_projection_dim", "guidance_embeds"})
      .told("num_layers", {c.layers})
      .told("num_attention_heads", {c.heads})
      .told("attention_head_dim", {c.head_dim})
      .told("joint_attention_dim", {c.text_width})
      .told("in_channels", {c.channels * kPatch * kPatch})
      .told("out_channels", {c.channels})
      .fixed("patch_size", {kPatch})
      .read({"axes_dims_rope", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope"});
  return fields;
}

// Of the language model: in text_config, or beside the other fields.
ConfigFields text_fields(const TextEncoderConfig& c) {
  using Values = std::vector<ConfigValue>;
  const Values kv_heads = c.kv_heads == c.heads ? Values{c.kv_heads, nullptr} : Values{c.kv_heads};
  ConfigFields fields;
  fields.of_transformers({"qwen2_5_vl", "qwen2_5_vl_text"})
      .rope_of_transformers()
      .told("vocab_size", {c.vocabulary})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_hidden_layers", {c.layers})
      .told("num_key_value_heads", kv_heads)
      .fixed("hidden_act", {"silu", "swish"})
      .read({"num_attention_heads", "rms_norm_eps"})
      .read({.name = "use_sliding_window", .values = {nullptr, false}})
      .read({.name = "sliding_window", .only_with = "use_sliding_window"})
      .read({.name = "max_window_layers", .only_with = "use_sliding_window"})
      .read({.name = "layer_types", .values = {nullptr}})
      .ignored({"image_token_id", "video_token_id", "vision_token_id", "vision_start_token_id",
                "vision_end_token_id"});
  return fields;
}

ConfigFields text_encoder_fields(const TextEncoderConfig& c) {
  const ConfigFields text = text_fields(c);
  ConfigFields fields;
  fields.add(text, "text_config.").add(text, "", /*unless=*/"text_config.");
  fields.ignored({"vision_config.*"});  // the tower is not used
  return fields;
}

ConfigFields vae_fields(const VaeConfig& c) {
  std::vector<double> multiples;
  for (const int64_t width : c.widths)
    multiples.push_back(static_cast<double>(width) / static_cast<double>(c.base_width));
  ConfigFields fields;
  fields.of_diffusers({"AutoencoderKLQwenImage", "AutoencoderKLWan"})
      .ignored({"dropout"})
      .told("base_dim", {c.base_width})
      .told("z_dim", {c.channels})
      .told("dim_mult", {multiples})
      .told("num_res_blocks", {c.res_blocks})
      .told("temperal_downsample", {std::vector<double>(c.temporal.begin(), c.temporal.end())})
      .fixed("attn_scales", {std::vector<double>()})
      .fixed("input_channels", {3})
      .read({"latents_mean", "latents_std"})
      // Of the second class alone, which has another form, too.
      .fixed("is_residual", {false})
      .fixed("patch_size", {nullptr})
      .fixed("in_channels", {3})
      .fixed("out_channels", {3})
      .told("decoder_base_dim", {c.base_width, nullptr})
      .ignored({"scale_factor_spatial", "scale_factor_temporal"});
  return fields;
}

}  // namespace

ConfigFields config_fields(const Detection& part) {
  if (part.component == "dit") return dit_fields(dit_config(part));
  if (part.component == "text_encoder") return text_encoder_fields(text_encoder_config(part));
  if (part.component == "vae") return vae_fields(vae_config(part));
  throw atelier::Error(atelier::ErrorCode::kInternal, "no config fields for " + part.component);
}

}  // namespace qwen_image
