// What each field of a config.json is to this family. The original repositories and diffusers wrote
// the files.
#include "atelier/config_fields.h"

#include "atelier/parts/causal_vae.h"

#include "camera.h"
#include "config.h"
#include "dit.h"
#include "longcat.h"
#include "s2v.h"
#include "vap.h"

namespace wan {

using atelier::ConfigFields;
using atelier::ConfigValue;
using atelier::Detection;

namespace {

ConfigValue or_null(int64_t value) {
  return value == 0 ? ConfigValue(nullptr) : ConfigValue(value);
}

// What diffusers' scheduler of a model's folder says. The class and its shift are taken by
// --schedule diffusers.
ConfigFields scheduler_fields() {
  const std::vector<ConfigValue> kNoiseSchedulers = {"UniPCMultistepScheduler",
                                                     "DPMSolverMultistepScheduler"};
  ConfigFields fields;
  fields
      .of_diffusers({"UniPCMultistepScheduler", "DPMSolverMultistepScheduler",
                     "FlowMatchEulerDiscreteScheduler"})
      .ignored({"flow_shift", "shift"})
      .fixed("num_train_timesteps", {1000})
      // Schedulers that were made for noise mean noise, and its levels, where a file says nothing.
      .needed("prediction_type", {"flow_prediction"}, kNoiseSchedulers)
      .needed("use_flow_sigmas", {true}, kNoiseSchedulers)
      .fixed("final_sigmas_type", {"zero"})
      .fixed("shift_terminal", {nullptr})
      .fixed("solver_order", {2})
      .fixed("solver_type", {"bh2", "midpoint"})  // of UniPC, and of DPM-Solver++
      .fixed("algorithm_type", {"dpmsolver++"})
      .fixed("predict_x0", {true})
      .fixed("lower_order_final", {true})
      .fixed("disable_corrector", {std::vector<double>()})
      .fixed("solver_p", {nullptr})
      .fixed("variance_type", {nullptr});
  for (const char* off : {"thresholding", "use_karras_sigmas", "use_exponential_sigmas",
                          "use_beta_sigmas", "use_lu_lambdas", "use_dynamic_shifting",
                          "euler_at_final", "invert_sigmas", "stochastic_sampling"})
    fields.fixed(off, {false});
  // For other levels than those of flows, and for what is off.
  fields.ignored({"beta_start", "beta_end", "beta_schedule", "trained_betas", "timestep_spacing",
                  "steps_offset", "rescale_betas_zero_snr", "lambda_min_clipped", "sigma_min",
                  "sigma_max", "dynamic_thresholding_ratio", "sample_max_value", "time_shift_type",
                  "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len"});
  return fields;
}

// The denoiser's of Wan2.2-Animate; those of its adapter are told there.
void add_animate(const DitConfig& c, ConfigFields& fields) {
  fields.told("latent_channels", {c.channels, nullptr})
      .fixed("use_img_emb", {true})
      .ignored(
          {"motion_*", "face_encoder_*", "inject_face_latents_blocks", "use_context_parallel"});
}

// What the original repository says of a model that hears.
ConfigFields audio_fields(const DitConfig& c) {
  ConfigFields fields;
  fields.told("audio_dim", {c.audio_width})
      .told("num_audio_token", {c.audio_tokens})
      .told("cond_dim", {c.channels})
      .read({"audio_inject_layers"})
      .fixed("enable_adain", {true})
      .fixed("adain_mode", {"attn_norm"})
      .fixed("zero_timestep", {true})
      .fixed("enable_motioner", {false})
      .fixed("enable_framepack", {true})
      .fixed("add_last_motion", {true})
      .fixed("motion_frames", {kMotionFrames})
      // How weights begin, what is dropped where not all motion is shown, and another way to show
      // it.
      .ignored({"zero_init", "framepack_drop_mode", "enable_tsm", "motion_token_num",
                "trainable_token", "trainable_token_pos_emb"});
  return fields;
}

// A branch has the widths of the denoiser beside it, and not its number of blocks.
ConfigFields fields_of(const DitConfig& c, bool is_branch) {
  std::vector<ConfigValue> model_types = {"t2v", "vace"};
  if (c.channels == kWideChannels) model_types = {"ti2v"};
  if (c.given_channels > 0) model_types = {c.image_rows > 0 ? "flf2v" : "i2v"};
  if (c.audio_states > 0) model_types = {"s2v"};
  const std::vector<ConfigValue> classes = {"WanTransformer3DModel",
                                            "WanModel",
                                            kDiffusersVaceClass,
                                            kOriginalVaceClass,
                                            kFunVaceClass,
                                            "Wan2_2Transformer3DModel",
                                            "WanAnimateTransformer3DModel",
                                            "WanAnimateModel",
                                            "WanModel_S2V",
                                            "WanTransformer3DMOTModel"};
  const std::vector<ConfigValue> driven_classes = {"WanAnimate2Transformer3DModel", "WanModel"};
  const auto patch = static_cast<double>(c.patch);
  const int64_t inputs = c.channels + c.control_channels + c.given_channels;
  ConfigFields fields;
  fields
      .of_diffusers(c.is_driven ? driven_classes : classes)
      // How long its tables of positions are; they are made as long as they have to be.
      .ignored({"rope_max_seq_len"})
      // About a VACE beside it, see vace_fields().
      .ignored({"vace_layers", "vace_in_dim", "vace_in_channels"})
      .told("ffn_dim", {c.mlp_width})
      .told("freq_dim", {c.time_width})
      .read({"num_heads", "num_attention_heads", "eps"})
      .fixed("cross_attn_norm", {true})
      .fixed("qk_norm", {"rms_norm_across_heads", true})
      // As the original repositories say it.
      .told("dim", {c.width})
      .told("in_dim", {inputs})
      .told("out_dim", {c.channels})
      .told("model_type", model_types)
      .fixed("text_len", {kTextRows})
      .fixed("window_size", {std::vector<double>{-1, -1}})
      // As diffusers says it.
      .told("patch_size", {std::vector<double>{1, patch, patch}})
      .told("text_dim", {c.text_width})
      .told("attention_head_dim", {c.head_dim()})
      .told("in_channels", {inputs})
      .told("out_channels", {c.channels, nullptr})
      .told("image_dim", {or_null(c.image_width)})
      .told("added_kv_proj_dim", {or_null(c.image_width > 0 ? c.width : 0)})
      .told("pos_embed_seq_len", {or_null(c.image_rows)})
      // As VideoX-Fun says it, and DiffSynth-Studio the first.
      .told("has_ref_conv", {c.has_reference})
      .told("add_ref_conv", {c.has_reference})
      .told("in_dim_ref_conv", {c.channels})
      .told("add_control_adapter", {c.has_camera})
      .fixed("in_dim_control_adapter", {kRayChannels})
      .fixed("downscale_factor_control_adapter", {kCameraCell})
      .told("hidden_size", {c.width})
      .ignored({"cross_attn_type"})  // follows from the tensors
      .add(scheduler_fields(), "scheduler.")
      // Generation changes experts where the folder says.
      .ignored({"model_index._*", "model_index.boundary_ratio"})
      .fixed("model_index.expand_timesteps", {c.channels == kWideChannels});
  if (is_branch) {
    fields.ignored({"num_layers"});
  } else {
    fields.told("num_layers", {c.layers});
  }
  // Where the driving clip lies: behind the reference image, and to the right of the clip.
  if (c.is_driven) {
    fields.fixed("use_img_emb", {true})
        .fixed("refer_offset_t", {1})
        .fixed("refer_offset_h", {0})
        .fixed("refer_offset_w", {-1})
        .fixed("refer_stride", {1});
  }
  return fields;
}

}  // namespace

ConfigFields dit_fields(const Detection& part) {
  if (is_longcat(part)) {
    ConfigFields fields = longcat_fields(part);
    return fields.add(scheduler_fields(), "scheduler.").ignored({"model_index._*"});
  }
  const auto c = atelier::parts::whole_config_of<DitConfig>(part);
  ConfigFields fields = fields_of(c, /*is_branch=*/false);
  if (part.variant == kAnimate) add_animate(c, fields);
  if (c.audio_states > 0) fields.add(audio_fields(c), "");
  // A branch of Video-As-Prompt beside it.
  fields.ignored({"block_idx_with_mot_ref", "attention_head_dim_mot_ref", "supported_effect_types",
                  "num_ref_embeddings", "reference_train_mode"});
  return fields;
}

ConfigFields vap_fields(const Detection& part) {
  const auto c = atelier::parts::whole_config_of<DitConfig>(part);
  std::vector<double> blocks;
  for (int64_t i = 0; i < c.layers; ++i) blocks.push_back(static_cast<double>(i * kVapStride));
  ConfigFields fields = fields_of(c, /*is_branch=*/true);
  fields.told("block_idx_with_mot_ref", {blocks})
      .fixed("attention_head_dim_mot_ref", {nullptr, c.head_dim()})
      .fixed("num_ref_embeddings", {nullptr})
      .fixed("reference_train_mode", {nullptr})
      .ignored({"supported_effect_types"});
  return fields;
}

ConfigFields vae_fields(const Detection& part) {
  return atelier::parts::causal_vae_fields(part, {"AutoencoderKLWan", "AutoencoderKLQwenImage"});
}

}  // namespace wan
