// What each field of a config.json is to this family. The original repositories and diffusers wrote
// the files.
#include "atelier/config_fields.h"

#include "config.h"
#include "dit.h"
#include "shared/causal_vae.h"

namespace wan {

using atelier::ConfigFields;
using atelier::ConfigValue;
using atelier::Detection;

namespace {

ConfigValue or_null(int64_t value) {
  return value == 0 ? ConfigValue(nullptr) : ConfigValue(value);
}

}  // namespace

ConfigFields dit_fields(const Detection& part) {
  const auto c = atelier::config_of<DitConfig>(part);
  const char* model_type = c.image_rows > 0              ? "flf2v"
                           : c.given_channels > 0        ? "i2v"
                           : c.channels == kWideChannels ? "ti2v"
                                                         : "t2v";
  const auto patch = static_cast<double>(c.patch);
  ConfigFields fields;
  fields
      .of_diffusers({"WanTransformer3DModel", "WanModel"})
      // How long its tables of positions are; they are made as long as they have to be.
      .ignored({"rope_max_seq_len"})
      .told("num_layers", {c.layers})
      .told("ffn_dim", {c.mlp_width})
      .told("freq_dim", {c.time_width})
      .read({"num_heads", "num_attention_heads", "eps"})
      .fixed("cross_attn_norm", {true})
      .fixed("qk_norm", {"rms_norm_across_heads", true})
      // As the original repositories say it.
      .told("dim", {c.width})
      .told("in_dim", {c.channels + c.given_channels})
      .told("out_dim", {c.channels})
      .told("model_type", {model_type})
      .fixed("text_len", {kTextRows})
      .fixed("window_size", {std::vector<double>{-1, -1}})
      // As diffusers says it.
      .told("patch_size", {std::vector<double>{1, patch, patch}})
      .told("text_dim", {c.text_width})
      .told("attention_head_dim", {c.head_dim()})
      .told("in_channels", {c.channels + c.given_channels})
      .told("out_channels", {c.channels, nullptr})
      .told("image_dim", {or_null(c.image_width)})
      .told("added_kv_proj_dim", {or_null(c.image_width > 0 ? c.width : 0)})
      .told("pos_embed_seq_len", {or_null(c.image_rows)});
  return fields;
}

ConfigFields vae_fields(const Detection& part) {
  return atelier::shared::causal_vae_fields(part, {"AutoencoderKLWan", "AutoencoderKLQwenImage"});
}

}  // namespace wan
