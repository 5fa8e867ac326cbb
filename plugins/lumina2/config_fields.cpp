// What each field of a config.json is to this family. Diffusers and transformers wrote the files.
#include "atelier/config_fields.h"

#include "config.h"
#include "gemma2.h"

namespace lumina2 {

using atelier::ConfigFields;
using atelier::ConfigValue;
using atelier::Detection;

namespace {

// What diffusers' scheduler of a model's folder says: the schedules have just these numbers.
ConfigFields scheduler_fields() {
  ConfigFields fields;
  fields.of_diffusers({"FlowMatchEulerDiscreteScheduler"})
      .fixed("num_train_timesteps", {1000})
      .fixed("shift", {6})
      .fixed("shift_terminal", {nullptr})
      // Fields of shifts by the number of tokens, which are off.
      .ignored({"base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len",
                "time_shift_type"});
  for (const char* off : {"use_dynamic_shifting", "invert_sigmas", "stochastic_sampling",
                          "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"})
    fields.fixed(off, {false});
  return fields;
}

}  // namespace

ConfigFields dit_fields(const Detection& part) {
  const auto c = atelier::config_of<DitConfig>(part);
  using Values = std::vector<ConfigValue>;
  const Values kv_heads = c.kv_heads == c.heads ? Values{c.kv_heads, nullptr} : Values{c.kv_heads};
  ConfigFields fields;
  fields
      .of_diffusers({"Lumina2Transformer2DModel"})
      // Sizes that it was trained at, how its feed-forward width was found, and a number that
      // nothing reads.
      .ignored({"sample_size", "axes_lens", "multiple_of", "ffn_dim_multiplier", "scaling_factor"})
      .told("num_layers", {c.layers})
      .told("num_refiner_layers", {c.refiners})
      .told("hidden_size", {c.width})
      .told("num_attention_heads", {c.heads})
      .told("num_kv_heads", kv_heads)
      .told("cap_feat_dim", {c.text_width})
      .told("in_channels", {c.channels})
      .told("out_channels", {c.channels, nullptr})
      .read({"patch_size", "axes_dim_rope", "norm_eps"})
      .add(scheduler_fields(), "scheduler.");
  return fields;
}

ConfigFields gemma2_fields(const Detection& part) {
  const auto c = atelier::config_of<Gemma2Config>(part);
  ConfigFields fields;
  fields.of_transformers({"gemma2"})
      .rope_of_transformers()
      .told("vocab_size", {c.vocabulary})
      .told("hidden_size", {c.width})
      .told("intermediate_size", {c.mlp_width})
      .told("num_attention_heads", {c.heads})
      .told("num_key_value_heads", {c.kv_heads})
      .told("attention_bias", {c.attention_bias})
      .fixed("hidden_activation", {"gelu_pytorch_tanh"})
      .fixed("use_bidirectional_attention", {nullptr, false})
      // Fields of the head, and earlier names that nothing reads any more.
      .ignored({"final_logit_softcapping", "hidden_act", "sliding_window_size"})
      .read({"num_hidden_layers", "head_dim", "query_pre_attn_scalar", "attn_logit_softcapping",
             "sliding_window", "rms_norm_eps"})
      .read({.name = "layer_types", .values = {nullptr}});
  return fields;
}

}  // namespace lumina2
