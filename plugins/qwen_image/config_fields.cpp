// What each field of a config.json is to this family. Diffusers and transformers wrote the files.
#include "atelier/config_fields.h"

#include "atelier/parts/causal_vae.h"

#include "config.h"
#include "pictures.h"

namespace qwen_image {

using atelier::ConfigFields;
using atelier::ConfigValue;
using atelier::Detection;

namespace {

// What diffusers' scheduler of a model's folder says: the default schedule has just these numbers.
ConfigFields scheduler_fields(bool is_layered) {
  ConfigFields fields;
  if (is_layered) {
    // The shift is told by the size of the picture, and not by these.
    fields.ignored({"base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len"});
  } else {
    fields.fixed("base_shift", {0.5})
        .fixed("max_shift", {0.9})
        .fixed("base_image_seq_len", {256})
        .fixed("max_image_seq_len", {8192});
  }
  fields.of_diffusers({"FlowMatchEulerDiscreteScheduler"})
      .fixed("num_train_timesteps", {1000})
      .fixed("shift", {1})
      .fixed("shift_terminal", {is_layered ? ConfigValue(nullptr) : ConfigValue(0.02)})
      .fixed("use_dynamic_shifting", {true})
      .fixed("time_shift_type", {is_layered ? "linear" : "exponential"});
  for (const char* off : {"invert_sigmas", "stochastic_sampling", "use_karras_sigmas",
                          "use_exponential_sigmas", "use_beta_sigmas"})
    fields.fixed(off, {false});
  return fields;
}

// What a folder's processor/ says of how pictures are brought to the vision tower: pictures.cpp
// computes just that.
ConfigFields picture_fields() {
  const auto reals = [](const double(&values)[3]) {
    return std::vector<double>(std::begin(values), std::end(values));
  };
  constexpr int64_t kBicubic = 3;  // as Pillow counts its filters
  ConfigFields fields;
  fields
      .fixed("image_processor_type", {"Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast",
                                      "Qwen2VLImageProcessorPil", "Qwen2_5_VLImageProcessor"})
      .fixed("patch_size", {kPatchPixels})
      .fixed("temporal_patch_size", {kFrames})
      .fixed("merge_size", {kTokenPatches})
      .fixed("size", {nullptr})
      .fixed("image_mean", {reals(kPixelMean)})
      .fixed("image_std", {reals(kPixelStd)})
      .fixed("rescale_factor", {kPixelScale})
      .fixed("resample", {kBicubic})
      // A picture is RGB before it comes here; the class neither cuts nor pads it.
      .ignored({"do_convert_rgb", "do_center_crop", "crop_size", "crop_size.*", "do_pad",
                "pad_size", "pad_size.*", "default_to_square"})
      .ignored({"feature_extractor_type", "processor_class", "_*", "auto_map.*", "data_format",
                "input_data_format", "device", "return_tensors", "disable_grouping"});
  // Versions of the class have other names for the bounds.
  for (const char* least : {"min_pixels", "size.shortest_edge", "size.min_pixels"})
    fields.fixed(least, {kMinPixels, nullptr});
  for (const char* most : {"max_pixels", "size.longest_edge", "size.max_pixels"})
    fields.fixed(most, {kMaxPixels, nullptr});
  for (const char* on : {"do_resize", "do_rescale", "do_normalize"}) fields.fixed(on, {true});
  return fields;
}

// What processor/ says; of its two files, one has the fields of pictures alone.
ConfigFields processor_fields() {
  ConfigFields fields;
  fields.add(picture_fields(), "image_processor.")
      .ignored({"processor_class", "_*", "auto_map.*", "chat_template", "image_token",
                "video_token", "video_processor.*"});
  return fields;
}

}  // namespace

ConfigFields dit_fields(const Detection& part) {
  const auto c = dit_config(part);
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
      .told("use_additional_t_cond", {c.layered})
      .told("use_layer3d_rope", {c.layered})
      .read({"axes_dims_rope", "zero_cond_t"})
      .add(scheduler_fields(c.layered), "scheduler.");
  return fields;
}

// The language model's fields stand in text_config, or beside the others; those of the vision tower
// are in vision.cpp.
ConfigFields text_encoder_fields(const Detection& part) {
  const auto c = text_encoder_config(part);
  using Values = std::vector<ConfigValue>;
  const Values kv_heads = c.kv_heads == c.heads ? Values{c.kv_heads, nullptr} : Values{c.kv_heads};
  ConfigFields text;
  text.read({kSectionFields[0], kSectionFields[1]})
      .of_transformers({"qwen2_5_vl", "qwen2_5_vl_text"})
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
  ConfigFields fields;
  fields.add(text, "text_config.").add(text, "", /*unless=*/"text_config.");
  fields.ignored({"vision_config.*"});
  // Pictures go to the vision tower, but its own table passes over every field of the text encoder.
  fields.add(processor_fields(), "processor.");
  return fields;
}

ConfigFields vae_fields(const Detection& part) {
  return atelier::parts::causal_vae_fields(part, {"AutoencoderKLQwenImage", "AutoencoderKLWan"});
}

}  // namespace qwen_image
