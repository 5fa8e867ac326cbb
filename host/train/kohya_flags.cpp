// What kohya's trainers call the settings of a run, and what they are here.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "host/train/foreign_flags.h"

namespace atelier::train {
namespace {

struct KohyaFlag {
  std::string_view name;
  bool has_value;  // one, or several up to the next flag
  std::string_view use;
};

constexpr std::string_view kModelPaths = "list all files of the model in --model_paths";
constexpr std::string_view kAlwaysEncoded =
    "samples are always encoded ahead and kept in --cache_path: leave it out";
constexpr std::string_view kNoSuchLoss =
    "the loss is the squared error, weighted by --weighting_scheme: leave it out";
constexpr std::string_view kNever = "nothing here corresponds to it: leave it out";

constexpr KohyaFlag kFlags[] = {
    {"pretrained_model_name_or_path", true, kModelPaths},
    {"gemma2", true, kModelPaths},
    {"ae", true, kModelPaths},
    {"gemma2_max_token_length", true, "the family's own limit holds: leave it out"},
    {"disable_mmap_load_safetensors", false, "files are read, not mapped, where that is quicker"},
    {"network_module", true, "--lora_base_model dit trains a LoRA"},
    {"network_dim", true, "use --lora_rank"},
    {"network_alpha", true, "use --lora_alpha"},
    {"network_dropout", true, "use --lora_dropout"},
    {"network_weights", true, "use --lora_checkpoint"},
    {"dim_from_weights", false, "give the rank of the file as --lora_rank"},
    {"network_args", true, "--lora_target_modules chooses layers, --lora_rank their rank"},
    {"network_train_unet_only", false, "--lora_base_model dit trains nothing else"},
    {"network_train_text_encoder_only", false, "use --lora_base_model text_encoder"},
    {"base_weights", true, "use --preset_lora_path"},
    {"scale_weight_norms", true, kNever},
    {"train_data_dir", true, "use --dataset_base_path"},
    {"dataset_config", true, "use --dataset_base_path, --dataset_metadata_path and --config"},
    {"in_json", true, "use --dataset_metadata_path"},
    {"resolution", true, "use --height and --width, or --max_pixels"},
    {"train_batch_size", true, "use --batch_size"},
    {"max_train_epochs", true, "use --num_epochs"},
    {"max_data_loader_n_workers", true, "use --dataset_num_workers"},
    {"persistent_data_loader_workers", false, "workers live as long as the run: leave it out"},
    {"shuffle_caption", false, kNever},
    {"keep_tokens", true, kNever},
    {"vae_batch_size", true, kAlwaysEncoded},
    {"text_encoder_batch_size", true, kAlwaysEncoded},
    {"cache_latents", false, kAlwaysEncoded},
    {"cache_latents_to_disk", false, kAlwaysEncoded},
    {"cache_text_encoder_outputs", false, kAlwaysEncoded},
    {"cache_text_encoder_outputs_to_disk", false, kAlwaysEncoded},
    {"skip_cache_check", false, kAlwaysEncoded},
    {"gradient_checkpointing", false, "use --use_gradient_checkpointing, or leave it to --vram"},
    {"cpu_offload_checkpointing", false, "use --use_gradient_checkpointing_offload"},
    {"full_bf16", false, "use --dtype bfloat16"},
    {"full_fp16", false, "use --dtype float16"},
    {"fp8_base", false, "use --storage dit=fp8"},
    {"blocks_to_swap", true, "use --offload dit=host and --resident_blocks"},
    {"use_flash_attn", false, "masks are never made: leave it out, or see --attention"},
    {"use_sage_attn", false, "see --attention"},
    {"sdpa", false, "see --attention"},
    {"xformers", false, "see --attention"},
    {"torch_compile", false, "operators are fused as they are built: leave it out"},
    {"lowram", false, "use --vram and --host_memory"},
    {"highvram", false, "use --vram"},
    {"fused_backward_pass", false, "use --optimize_on_cpu"},
    {"blockwise_fused_optimizers", false, "use --optimize_on_cpu"},
    {"mem_eff_save", false, "files are always written so: leave it out"},
    {"unet_lr", true, "use --learning_rate"},
    {"text_encoder_lr", true, "one rate holds for all: use --learning_rate"},
    {"lr_scheduler_num_cycles_ratio", true, "use --lr_scheduler_num_cycles"},
    {"lr_warmup_ratio", true, "use --lr_warmup_steps"},
    {"model_prediction_type", true, "the model predicts the velocity (raw): leave it out"},
    {"loss_type", true, kNoSuchLoss},
    {"huber_schedule", true, kNoSuchLoss},
    {"huber_c", true, kNoSuchLoss},
    {"min_snr_gamma", true, kNoSuchLoss},
    {"debiased_estimation_loss", false, kNoSuchLoss},
    {"masked_loss", false, "use --mask_column or --alpha_mask"},
    {"noise_offset", true, kNever},
    {"multires_noise_iterations", true, kNever},
    {"ip_noise_gamma", true, kNever},
    {"zero_terminal_snr", false, kNever},
    {"min_timestep", true, "use --max_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    {"max_timestep", true, "use --min_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    {"clip_skip", true, kNever},
    {"output_dir", true, "use --output_path"},
    {"output_name", true, "files are named after steps and epochs in --output_path"},
    {"save_model_as", true, "files are always safetensors: leave it out"},
    {"save_precision", true, "use --save_dtype"},
    {"save_every_n_steps", true, "use --save_steps"},
    {"save_every_n_epochs", true,
     "weights are saved after each epoch unless --save_steps is given"},
    {"save_last_n_steps", true, "use --weights_total_limit"},
    {"save_last_n_epochs", true, "use --weights_total_limit"},
    {"save_state_on_train_end", false, "use --save_state"},
    {"initial_step", true, "--resume goes on where the checkpoint is"},
    {"initial_epoch", true, "--resume goes on where the checkpoint is"},
    {"skip_until_initial_step", false, "--resume goes on where the checkpoint is"},
    {"no_metadata", false, "metadata holds settings of the layers, and no data: leave it out"},
    {"log_with", true, "use --enable_tensorboard_log or --enable_csv_log"},
    {"logging_dir", true, "use --enable_tensorboard_log; logs lie in --output_path"},
    {"huggingface_repo_id", true, "nothing is uploaded: leave it out"},
};

struct KohyaValue {
  std::string_view name, value, use;
};

constexpr KohyaValue kValues[] = {
    {"timestep_sampling", "nextdit_shift", "uniform_dynamic_shift"},
    {"timestep_sampling", "flux_shift", "sigmoid_dynamic_shift"},
    {"timestep_sampling", "sigma", "uniform"},
};

// Without dashes and value; empty when it is no flag.
std::string_view flag_name(std::string_view argument) {
  if (!argument.starts_with("--")) return {};
  return argument.substr(
      2, argument.find('=') == argument.npos ? argument.npos : argument.find('=') - 2);
}

const KohyaFlag* find_flag(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFlags), std::end(kFlags),
                                [&](const KohyaFlag& flag) { return flag.name == name; });
  return it == std::end(kFlags) ? nullptr : it;
}

const KohyaValue* find_value(std::string_view name, std::string_view value) {
  const auto* it = std::find_if(
      std::begin(kValues), std::end(kValues),
      [&](const KohyaValue& entry) { return entry.name == name && entry.value == value; });
  return it == std::end(kValues) ? nullptr : it;
}

}  // namespace

std::vector<std::string> take_kohya_flags(std::span<const std::string> arguments,
                                          report::Problems& problems) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view name = flag_name(arguments[i]);
    if (name.empty()) {
      rest.push_back(arguments[i]);
      continue;
    }
    const bool is_joined = arguments[i].find('=') != std::string::npos;
    if (const KohyaFlag* flag = find_flag(name)) {
      problems.add("--" + std::string(name) + " is a flag of kohya's trainers",
                   std::string(flag->use));
      while (flag->has_value && !is_joined && i + 1 < arguments.size() &&
             !arguments[i + 1].starts_with("--"))
        ++i;
      continue;
    }
    std::string_view value;
    if (is_joined) value = std::string_view(arguments[i]).substr(name.size() + 3);
    if (!is_joined && i + 1 < arguments.size()) value = arguments[i + 1];
    if (const KohyaValue* entry = find_value(name, value)) {
      problems.add("--" + std::string(name) + ": " + std::string(value) +
                       " is what kohya's trainers call it",
                   "use --" + std::string(name) + " " + std::string(entry->use));
      if (!is_joined) ++i;
      continue;
    }
    rest.push_back(arguments[i]);
  }
  return rest;
}

}  // namespace atelier::train
