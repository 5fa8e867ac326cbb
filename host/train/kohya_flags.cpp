// What kohya's trainers call the settings of a run, and what becomes of each here.
#include "host/train/foreign_flags.h"

namespace atelier::train {
namespace {

constexpr std::string_view kModelPaths = "list all files of the model in --model_paths";
constexpr std::string_view kAlwaysEncoded =
    "samples are always encoded ahead and kept in --cache_path";
constexpr std::string_view kLoss = "the loss is the squared error, weighted by --weighting_scheme";
constexpr std::string_view kNever = "nothing here corresponds to it";
constexpr std::string_view kOtherModels = "it belongs to other models";
constexpr std::string_view kFused = "operators are fused as they are built";
constexpr std::string_view kAttention = "masks are never made, and --attention chooses by itself";
constexpr std::string_view kPlanned = "--vram says what the run may take, and the rest is planned";
constexpr std::string_view kCaptions = "captions are learnt as they stand";
constexpr std::string_view kNoAugmentation = "pictures are learnt as they stand";
constexpr std::string_view kResumed = "--resume goes on where the checkpoint is";
constexpr std::string_view kNotUploaded = "nothing is uploaded";
constexpr std::string_view kNames = "files are named after steps and epochs in --output_path";
constexpr std::string_view kLogs = "--enable_tensorboard_log is on; logs lie in --output_path";

using enum Fate;

constexpr ForeignFlag kFlags[] = {
    // The model.
    {"pretrained_model_name_or_path", true, kRead, kModelPaths},
    {"gemma2", true, kRead, kModelPaths},
    {"ae", true, kRead, kModelPaths},
    {"vae", true, kRead, kModelPaths},
    {"gemma2_max_token_length", true, kIdle, "the family's own limit holds"},
    {"max_token_length", true, kIdle, "the family's own limit holds"},
    {"tokenizer_cache_dir", true, kIdle, "tokenizers are read from the model's folder"},
    {"disable_mmap_load_safetensors", false, kIdle,
     "files are read, not mapped, where that is quicker"},
    {"no_half_vae", false, kIdle, "--dtype bfloat16,vae=float32 keeps the VAE in float32"},
    {"clip_skip", true, kIdle, kOtherModels},
    {"v2", false, kIdle, kOtherModels},
    {"v_parameterization", false, kIdle, kOtherModels},
    // What is trained.
    {"network_module", true, kRead, "--lora_base_model dit trains a LoRA"},
    {"network_dim", true, kRenamed, "lora_rank"},
    {"network_alpha", true, kRenamed, "lora_alpha"},
    {"network_dropout", true, kRenamed, "lora_dropout"},
    {"network_weights", true, kRenamed, "lora_checkpoint"},
    {"dim_from_weights", false, kLost, "--lora_rank is the rank of the file"},
    {"network_args", true, kRead, "--lora_target_modules chooses layers, --lora_rank their rank"},
    {"network_train_unet_only", false, kIdle, "--lora_base_model dit trains nothing else"},
    {"network_train_text_encoder_only", false, kFixed, "--lora_base_model text_encoder"},
    {"base_weights", true, kRenamed, "preset_lora_path"},
    {"base_weights_multiplier", true, kLost, "--preset_lora_path has strength 1"},
    {"scale_weight_norms", true, kLost, kNever},
    {"training_comment", true, kIdle, "metadata holds settings of the layers, and no comment"},
    {"no_metadata", false, kIdle, "metadata holds settings of the layers, and no data"},
    // The dataset.
    {"train_data_dir", true, kRenamed, "dataset_base_path"},
    {"reg_data_dir", true, kLost, kNever},
    {"dataset_config", true, kRead, "use --dataset_base_path and the flags of the group Size"},
    {"dataset_class", true, kLost, kNever},
    {"in_json", true, kRenamed, "dataset_metadata_path"},
    {"dataset_repeats", true, kRenamed, "dataset_repeat"},
    {"conditioning_data_dir", true, kLost, kNever},
    {"resolution", true, kRead, "use --height and --width, or --max_pixels with --enable_bucket"},
    {"train_batch_size", true, kRenamed, "batch_size"},
    {"max_data_loader_n_workers", true, kRenamed, "dataset_num_workers"},
    {"persistent_data_loader_workers", false, kIdle, "workers live as long as the run"},
    {"shuffle_caption", false, kLost, kCaptions},
    {"keep_tokens", true, kIdle, kCaptions},
    {"keep_tokens_separator", true, kIdle, kCaptions},
    {"caption_separator", true, kIdle, kCaptions},
    {"secondary_separator", true, kLost, kCaptions},
    {"caption_prefix", true, kLost, kCaptions},
    {"caption_suffix", true, kLost, kCaptions},
    {"enable_wildcard", false, kLost, kCaptions},
    {"caption_tag_dropout_rate", true, kLost, kCaptions},
    {"caption_dropout_every_n_epochs", true, kLost, "--caption_dropout_rate drops by chance"},
    {"color_aug", false, kLost, kNoAugmentation},
    {"flip_aug", false, kLost, kNoAugmentation},
    {"random_crop", false, kLost, kNoAugmentation},
    {"face_crop_aug_range", true, kLost, kNoAugmentation},
    {"resize_interpolation", true, kIdle, "pictures are scaled as DiffSynth-Studio does"},
    {"masked_loss", false, kLost, "--mask_column or --alpha_mask says where the loss counts"},
    {"vae_batch_size", true, kIdle, kAlwaysEncoded},
    {"text_encoder_batch_size", true, kIdle, kAlwaysEncoded},
    {"cache_latents", false, kIdle, kAlwaysEncoded},
    {"cache_latents_to_disk", false, kIdle, kAlwaysEncoded},
    {"cache_text_encoder_outputs", false, kIdle, kAlwaysEncoded},
    {"cache_text_encoder_outputs_to_disk", false, kIdle, kAlwaysEncoded},
    {"skip_cache_check", false, kIdle, kAlwaysEncoded},
    {"cache_info", false, kIdle, "headers of pictures are read at every start"},
    // Memory and speed.
    {"gradient_checkpointing", false, kFixed, "--use_gradient_checkpointing"},
    {"cpu_offload_checkpointing", false, kFixed, "--use_gradient_checkpointing_offload"},
    {"full_bf16", false, kFixed, "--dtype bfloat16"},
    {"full_fp16", false, kFixed, "--dtype bfloat16"},
    {"fp8_base", false, kFixed, "--storage dit=fp8"},
    {"fp8_base_unet", false, kFixed, "--storage dit=fp8"},
    {"blocks_to_swap", true, kIdle, kPlanned},
    {"lowram", false, kIdle, kPlanned},
    {"highvram", false, kIdle, kPlanned},
    {"use_flash_attn", false, kIdle, kAttention},
    {"use_sage_attn", false, kIdle, kAttention},
    {"sdpa", false, kIdle, kAttention},
    {"xformers", false, kIdle, kAttention},
    {"mem_eff_attn", false, kIdle, kAttention},
    {"torch_compile", false, kIdle, kFused},
    {"fused_backward_pass", false, kFixed, "--optimize_on_cpu"},
    {"blockwise_fused_optimizers", false, kFixed, "--optimize_on_cpu"},
    {"mem_eff_save", false, kIdle, "files are always written so"},
    {"ddp_timeout", true, kIdle, "one process trains on one device"},
    {"ddp_gradient_as_bucket_view", false, kIdle, "one process trains on one device"},
    {"ddp_static_graph", false, kIdle, "one process trains on one device"},
    // The optimizer and the loss.
    {"use_8bit_adam", false, kFixed, "--optimizer_type AdamW8bit"},
    {"use_lion_optimizer", false, kLost, kNever},
    {"unet_lr", true, kRenamed, "learning_rate"},
    {"text_encoder_lr", true, kIdle, "one rate holds for all: --learning_rate"},
    {"lr_scheduler_type", true, kLost, "--lr_scheduler chooses by name"},
    {"lr_scheduler_args", true, kLost,
     "--lr_scheduler_num_cycles and --lr_scheduler_power are flags"},
    {"lr_scheduler_timescale", true, kLost, kNever},
    {"lr_scheduler_min_lr_ratio", true, kLost, kNever},
    {"lr_decay_steps", true, kLost, kNever},
    {"lr_scheduler_num_cycles_ratio", true, kLost,
     "--lr_scheduler_num_cycles is a number of cycles"},
    {"lr_warmup_ratio", true, kLost, "--lr_warmup_steps is a number of steps"},
    {"max_train_epochs", true, kRenamed, "num_epochs"},
    {"model_prediction_type", true, kRead, "the model predicts the velocity (raw)"},
    {"loss_type", true, kRead, kLoss},
    {"huber_schedule", true, kIdle, kLoss},
    {"huber_c", true, kIdle, kLoss},
    {"huber_scale", true, kIdle, kLoss},
    {"min_snr_gamma", true, kLost, kLoss},
    {"debiased_estimation_loss", false, kLost, kLoss},
    {"prior_loss_weight", true, kIdle, kNever},
    {"noise_offset", true, kLost, kNever},
    {"noise_offset_random_strength", false, kLost, kNever},
    {"adaptive_noise_scale", true, kLost, kNever},
    {"multires_noise_iterations", true, kLost, kNever},
    {"multires_noise_discount", true, kIdle, kNever},
    {"ip_noise_gamma", true, kLost, kNever},
    {"ip_noise_gamma_random_strength", false, kLost, kNever},
    {"zero_terminal_snr", false, kLost, kNever},
    {"min_timestep", true, kRead, "use --max_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    {"max_timestep", true, kRead, "use --min_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    // What is written.
    {"output_dir", true, kRenamed, "output_path"},
    {"output_name", true, kIdle, kNames},
    {"save_model_as", true, kIdle, "files are always safetensors"},
    {"use_safetensors", false, kIdle, "files are always safetensors"},
    {"save_precision", true, kRead, "use --save_dtype"},
    {"save_every_n_steps", true, kRenamed, "save_steps"},
    {"save_every_n_epochs", true, kRead,
     "weights are saved after each epoch unless --save_steps is given"},
    {"save_n_epoch_ratio", true, kIdle, "weights are saved after each epoch"},
    {"save_last_n_steps", true, kRead, "--weights_total_limit is a number of files"},
    {"save_last_n_epochs", true, kRenamed, "weights_total_limit"},
    {"save_last_n_steps_state", true, kIdle,
     "--checkpoints_total_limit is a number of checkpoints"},
    {"save_last_n_epochs_state", true, kRenamed, "checkpoints_total_limit"},
    {"save_state_on_train_end", false, kFixed, "--save_state"},
    {"initial_step", true, kLost, kResumed},
    {"initial_epoch", true, kLost, kResumed},
    {"skip_until_initial_step", false, kIdle, kResumed},
    {"log_with", true, kIdle, kLogs},
    {"logging_dir", true, kIdle, kLogs},
    {"log_prefix", true, kIdle, kLogs},
    {"log_tracker_name", true, kIdle, kLogs},
    {"log_tracker_config", true, kIdle, kLogs},
    {"log_config", false, kIdle, "config.toml in --output_path holds every flag"},
    {"output_config", false, kIdle, "config.toml in --output_path holds every flag"},
    {"wandb_run_name", true, kIdle, kLogs},
    {"wandb_api_key", true, kIdle, kLogs},
    {"huggingface_repo_id", true, kIdle, kNotUploaded},
    {"huggingface_repo_type", true, kIdle, kNotUploaded},
    {"huggingface_path_in_repo", true, kIdle, kNotUploaded},
    {"huggingface_token", true, kIdle, kNotUploaded},
    {"huggingface_repo_visibility", true, kIdle, kNotUploaded},
    {"save_state_to_huggingface", false, kIdle, kNotUploaded},
    {"async_upload", false, kIdle, kNotUploaded},
    {"sample_sampler", true, kIdle, "previews are drawn with the family's own solver"},
    {"sample_batch_size", true, kIdle, "previews are drawn one by one"},
    {"validate_every_n_steps", true, kRenamed, "validation_steps"},
    {"validate_every_n_epochs", true, kLost, "--validation_steps counts steps"},
    {"validation_split", true, kLost, "--validation_dataset_base_path is a dataset of its own"},
    {"validation_seed", true, kIdle, "validation always has the same noise"},
    {"max_validation_steps", true, kIdle, "the whole validation dataset is used"},
};

}  // namespace

std::span<const ForeignFlag> kohya_flags() {
  return kFlags;
}

}  // namespace atelier::train
