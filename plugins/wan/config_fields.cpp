// What each field of a config.json is to this family. The original repositories and diffusers wrote
// the files.
#include "atelier/config_fields.h"

#include "atelier/parts/causal_vae.h"

#include "camera.h"
#include "config.h"
#include "dit.h"

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

}  // namespace

ConfigFields dit_fields(const Detection& part) {
  const auto c = atelier::parts::whole_config_of<DitConfig>(part);
  std::vector<ConfigValue> model_types = {"t2v", "vace"};
  if (c.channels == kWideChannels) model_types = {"ti2v"};
  if (c.given_channels > 0) model_types = {c.image_rows > 0 ? "flf2v" : "i2v"};
  const std::vector<ConfigValue> classes = {"WanTransformer3DModel", "WanModel",
                                            kDiffusersVaceClass,     kOriginalVaceClass,
                                            kFunVaceClass,           "Wan2_2Transformer3DModel"};
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
      .told("num_layers", {c.layers})
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

ConfigFields vae_fields(const Detection& part) {
  return atelier::parts::causal_vae_fields(part, {"AutoencoderKLWan", "AutoencoderKLQwenImage"});
}

}  // namespace wan
