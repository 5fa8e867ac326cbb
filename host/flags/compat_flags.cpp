#include "host/flags/compat_flags.h"

#include <algorithm>
#include <iterator>

namespace atelier::flags {
namespace {

using enum CompatFate;

constexpr std::string_view kLaunched =
    "atelier launch --nproc_per_node N -- train … starts several processes";
constexpr std::string_view kBuckets = "gradients are always sent in buckets that stay";
constexpr std::string_view kAllPlanned =
    "--vram says what the run may take, and where weights and the optimizer rest is planned";
constexpr std::string_view kPlanned = "--vram says what the run may take, and the rest is planned";
constexpr std::string_view kPlacement = "use --vram, or --offload dit=host";
constexpr std::string_view kModelPaths = "list all files of the model in --model_paths";
constexpr std::string_view kVariant =
    "--model_hints '{\"*\": {\"variant\": \"name\"}}' says what the files do not";
constexpr std::string_view kDtypes = "--dtype bfloat16,vae=float32 says it for each component";
constexpr std::string_view kReadWhole = "files are read, not mapped, where that is quicker";
constexpr std::string_view kTiles = "the VAE takes what --vram leaves";
constexpr std::string_view kSpeedUp = "every step is computed";
constexpr std::string_view kOneByOne = "write --prompts_file FILE, one JSON object a line";
constexpr std::string_view kAlwaysEncoded =
    "samples are always encoded ahead and kept in --cache_path";
constexpr std::string_view kLoss = "the loss is the squared error, weighted by --weighting_scheme";
constexpr std::string_view kNever = "nothing here corresponds to it";
constexpr std::string_view kOtherModels = "it belongs to other models";
constexpr std::string_view kFused = "operators are fused as they are built";
constexpr std::string_view kAttention = "masks are never made, and --attention chooses by itself";
constexpr std::string_view kCaptions = "captions are learnt as they stand";
constexpr std::string_view kNoAugmentation = "images are learnt as they stand";
constexpr std::string_view kResumed = "--resume goes on where the checkpoint is";
constexpr std::string_view kNotUploaded = "nothing is uploaded";
constexpr std::string_view kNames = "files are named after steps and epochs in --output_path";
constexpr std::string_view kLogs = "--enable_tensorboard_log is on; logs lie in --output_path";
constexpr std::string_view kNoLog = "there is no such log";

constexpr CompatFlag kFlags[] = {
    // Flags of the launchers: accelerate launch, torchrun and deepspeed.
    {"config_file", kLauncher, true, kIdle, kAllPlanned},
    {"mixed_precision", kLauncher, true, kRead,
     "--dtype says what weights are kept and computed in"},
    {"num_processes", kLauncher, true, kRead, kLaunched},
    {"nproc_per_node", kLauncher, true, kRead, kLaunched},
    {"nproc-per-node", kLauncher, true, kRead, kLaunched},
    {"num_gpus", kLauncher, true, kRead, kLaunched},
    {"num_machines", kLauncher, true, kRead, kLaunched},
    {"nnodes", kLauncher, true, kRead, kLaunched},
    {"multi_gpu", kLauncher, false, kLost, kLaunched},
    {"machine_rank", kLauncher, true, kIdle, kLaunched},
    {"node_rank", kLauncher, true, kIdle, kLaunched},
    {"main_process_ip", kLauncher, true, kIdle, kLaunched},
    {"main_process_port", kLauncher, true, kIdle, kLaunched},
    {"master_addr", kLauncher, true, kIdle, kLaunched},
    {"master_port", kLauncher, true, kIdle, kLaunched},
    {"rdzv_backend", kLauncher, true, kIdle, kLaunched},
    {"rdzv_endpoint", kLauncher, true, kIdle, kLaunched},
    {"standalone", kLauncher, false, kIdle, kLaunched},
    {"gpu_ids", kLauncher, true, kRead, "--device cuda:N chooses a GPU"},
    {"use_deepspeed", kLauncher, false, kIdle, kAllPlanned},
    {"deepspeed_config_file", kLauncher, true, kIdle, kAllPlanned},
    {"zero_stage", kLauncher, true, kIdle, kAllPlanned},
    {"use_fsdp", kLauncher, false, kIdle, "--zero_stage 3 divides the model among processes"},
    {"dynamo_backend", kLauncher, true, kIdle, "operators are fused as they are built"},
    {"dynamo_mode", kLauncher, true, kIdle, "operators are fused as they are built"},
    {"num_cpu_threads_per_process", kLauncher, true, kIdle, "--threads is one for each core"},
    // Flags of kohya's trainers: the model.
    {"pretrained_model_name_or_path", kKohya, true, kModel, kModelPaths},
    {"gemma2", kKohya, true, kModel, kModelPaths},
    {"ae", kKohya, true, kModel, kModelPaths},
    {"vae", kKohya | kSampler, true, kModel, kModelPaths},
    {"dit", kKohya | kSampler, true, kModel, kModelPaths},
    {"t5", kKohya | kSampler, true, kModel, kModelPaths},
    {"clip", kKohya | kSampler, true, kModel, kModelPaths},
    {"text_encoder", kKohya | kSampler, true, kModel, kModelPaths},
    {"model_version", kKohya | kSampler, true, kRead, kVariant},
    {"edit", kKohya | kSampler, false, kRead, kVariant},
    {"edit_plus", kKohya | kSampler, false, kRead, kVariant},
    {"dit_high_noise", kKohya, true, kLost,
     "a LoRA there is of both denoisers; --lora_base_model dit,dit2 learns one for each"},
    {"timestep_boundary", kKohya, true, kIdle, "it goes with --dit_high_noise"},
    {"offload_inactive_dit", kKohya | kSampler, false, kIdle, kPlanned},
    {"lazy_loading", kSampler, false, kIdle, kPlanned},
    {"force_v2_1_time_embedding", kKohya | kSampler, false, kLost, kNever},
    {"dit_dtype", kKohya, true, kRenamed, "dtype"},
    {"vae_dtype", kKohya | kSampler, true, kIdle, kDtypes},
    {"text_encoder_dtype", kKohya, true, kIdle, kDtypes},
    {"disable_numpy_memmap", kKohya | kSampler, false, kIdle, kReadWhole},
    {"gemma2_max_token_length", kKohya, true, kIdle, "the family's own limit holds"},
    {"max_token_length", kKohya, true, kIdle, "the family's own limit holds"},
    {"tokenizer_cache_dir", kKohya, true, kIdle, "tokenizers are read from the model's folder"},
    {"disable_mmap_load_safetensors", kKohya, false, kIdle, kReadWhole},
    {"no_half_vae", kKohya, false, kIdle, "--dtype bfloat16,vae=float32 keeps the VAE in float32"},
    {"clip_skip", kKohya, true, kIdle, kOtherModels},
    {"v2", kKohya, false, kIdle, kOtherModels},
    {"v_parameterization", kKohya, false, kIdle, kOtherModels},
    // What is trained.
    {"network_module", kKohya, true, kRead, "--lora_base_model dit trains a LoRA"},
    {"network_dim", kKohya, true, kRenamed, "lora_rank"},
    {"network_alpha", kKohya, true, kRenamed, "lora_alpha"},
    {"network_dropout", kKohya, true, kRenamed, "lora_dropout"},
    {"network_weights", kKohya, true, kRenamed, "lora_checkpoint"},
    {"dim_from_weights", kKohya, false, kLost, "--lora_rank is the rank of the file"},
    {"network_args", kKohya, true, kRead,
     "--lora_target_modules chooses layers, --lora_rank their rank"},
    {"network_train_unet_only", kKohya, false, kIdle, "--lora_base_model dit trains nothing else"},
    {"network_train_text_encoder_only", kKohya, false, kFixed, "--lora_base_model text_encoder"},
    {"base_weights", kKohya, true, kRenamed, "preset_lora_path"},
    {"base_weights_multiplier", kKohya, true, kLost, "--preset_lora_path has strength 1"},
    {"scale_weight_norms", kKohya, true, kLost, kNever},
    {"training_comment", kKohya, true, kIdle,
     "metadata holds settings of the layers, and no comment"},
    {"no_metadata", kKohya, false, kIdle, "metadata holds settings of the layers, and no data"},
    // The dataset.
    {"train_data_dir", kKohya, true, kRenamed, "dataset_base_path"},
    {"reg_data_dir", kKohya, true, kLost, kNever},
    {"dataset_config", kKohya, true, kRead,
     "use --dataset_base_path and the flags of the group Size"},
    {"dataset_class", kKohya, true, kLost, kNever},
    {"in_json", kKohya, true, kRenamed, "dataset_metadata_path"},
    {"dataset_repeats", kKohya, true, kRenamed, "dataset_repeat"},
    {"conditioning_data_dir", kKohya, true, kLost, kNever},
    {"resolution", kKohya, true, kRead,
     "use --height and --width, or --max_pixels with --enable_bucket"},
    {"train_batch_size", kKohya, true, kRenamed, "batch_size"},
    {"max_data_loader_n_workers", kKohya, true, kRenamed, "dataset_num_workers"},
    {"persistent_data_loader_workers", kKohya, false, kIdle, "workers live as long as the run"},
    {"shuffle_caption", kKohya, false, kLost, kCaptions},
    {"keep_tokens", kKohya, true, kIdle, kCaptions},
    {"keep_tokens_separator", kKohya, true, kIdle, kCaptions},
    {"caption_separator", kKohya, true, kIdle, kCaptions},
    {"secondary_separator", kKohya, true, kLost, kCaptions},
    {"caption_prefix", kKohya, true, kLost, kCaptions},
    {"caption_suffix", kKohya, true, kLost, kCaptions},
    {"enable_wildcard", kKohya, false, kLost, kCaptions},
    {"caption_tag_dropout_rate", kKohya, true, kLost, kCaptions},
    {"caption_dropout_every_n_epochs", kKohya, true, kLost,
     "--caption_dropout_rate drops by chance"},
    {"color_aug", kKohya, false, kLost, kNoAugmentation},
    {"flip_aug", kKohya, false, kLost, kNoAugmentation},
    {"random_crop", kKohya, false, kLost, kNoAugmentation},
    {"face_crop_aug_range", kKohya, true, kLost, kNoAugmentation},
    {"resize_interpolation", kKohya, true, kIdle, "images are scaled as DiffSynth-Studio does"},
    {"masked_loss", kKohya, false, kLost,
     "--mask_column or --alpha_mask says where the loss counts"},
    {"vae_batch_size", kKohya, true, kIdle, kAlwaysEncoded},
    {"text_encoder_batch_size", kKohya, true, kIdle, kAlwaysEncoded},
    {"cache_latents", kKohya, false, kIdle, kAlwaysEncoded},
    {"cache_latents_to_disk", kKohya, false, kIdle, kAlwaysEncoded},
    {"cache_text_encoder_outputs", kKohya, false, kIdle, kAlwaysEncoded},
    {"cache_text_encoder_outputs_to_disk", kKohya, false, kIdle, kAlwaysEncoded},
    {"skip_cache_check", kKohya, false, kIdle, kAlwaysEncoded},
    {"skip_existing", kKohya, false, kIdle, "what is in --cache_path already is never made again"},
    {"keep_cache", kKohya, false, kIdle, "entries of other samples stay"},
    {"num_workers", kKohya, true, kRenamed, "dataset_num_workers"},
    {"i2v", kKohya, false, kRead, "--extra_inputs names the inputs that are learnt with"},
    {"one_frame", kKohya, false, kLost, kNever},
    {"remove_first_image_from_target", kKohya, false, kLost, kNever},
    {"cache_info", kKohya, false, kIdle, "headers of images are read at every start"},
    // Memory and speed.
    {"gradient_checkpointing", kKohya, false, kFixed, "--use_gradient_checkpointing"},
    {"gradient_checkpointing_cpu_offload", kKohya, false, kFixed,
     "--use_gradient_checkpointing_offload"},
    {"cpu_offload_checkpointing", kKohya, false, kFixed, "--use_gradient_checkpointing_offload"},
    {"full_bf16", kKohya, false, kFixed, "--dtype bfloat16"},
    {"full_fp16", kKohya, false, kFixed, "--dtype bfloat16"},
    {"fp8_base", kKohya, false, kFixed, "--storage dit=fp8"},
    {"fp8_base_unet", kKohya, false, kFixed, "--storage dit=fp8"},
    {"fp8_scaled", kKohya | kSampler, false, kFixed, "--storage dit=fp8"},
    {"fp8_t5", kKohya, false, kIdle, kPlanned},
    {"fp8_vl", kKohya, false, kIdle, kPlanned},
    {"blocks_to_swap", kKohya, true, kIdle, kPlanned},
    {"use_pinned_memory_for_block_swap", kKohya | kSampler, false, kIdle, kPlanned},
    {"vae_cache_cpu", kKohya | kSampler, false, kIdle, kTiles},
    {"vae_chunk_size", kKohya | kSampler, true, kIdle, kTiles},
    {"vae_spatial_tile_sample_min_size", kKohya | kSampler, true, kIdle, kTiles},
    {"lowram", kKohya, false, kIdle, kPlanned},
    {"highvram", kKohya, false, kIdle, kPlanned},
    {"use_flash_attn", kKohya | kSampler, false, kIdle, kAttention},
    {"use_sage_attn", kKohya | kSampler, false, kIdle, kAttention},
    {"flash_attn", kKohya, false, kIdle, kAttention},
    {"flash3", kKohya, false, kIdle, kAttention},
    {"sage_attn", kKohya, false, kIdle, kAttention},
    {"split_attn", kKohya, false, kIdle, kAttention},
    {"sdpa", kKohya, false, kIdle, kAttention},
    {"xformers", kKohya, false, kIdle, kAttention},
    {"mem_eff_attn", kKohya, false, kIdle, kAttention},
    {"torch_compile", kKohya | kSampler, false, kIdle, kFused},
    {"fused_backward_pass", kKohya, false, kFixed, "--optimize_on_cpu"},
    {"blockwise_fused_optimizers", kKohya, false, kFixed, "--optimize_on_cpu"},
    {"mem_eff_save", kKohya, false, kIdle, "files are always written so"},
    {"ddp_timeout", kKohya, true, kFixed, "--dist_timeout, in seconds"},
    {"ddp_gradient_as_bucket_view", kKohya, false, kIdle, kBuckets},
    {"ddp_static_graph", kKohya, false, kIdle, kBuckets},
    // The optimizer and the loss.
    {"use_8bit_adam", kKohya, false, kFixed, "--optimizer_type AdamW8bit"},
    {"use_lion_optimizer", kKohya, false, kLost, kNever},
    {"unet_lr", kKohya, true, kRenamed, "learning_rate"},
    {"text_encoder_lr", kKohya, true, kIdle, "one rate holds for all: --learning_rate"},
    {"lr_scheduler_type", kKohya, true, kLost, "--lr_scheduler chooses by name"},
    {"lr_scheduler_args", kKohya, true, kLost,
     "--lr_scheduler_num_cycles and --lr_scheduler_power are flags"},
    {"lr_scheduler_timescale", kKohya, true, kLost, kNever},
    {"lr_scheduler_min_lr_ratio", kKohya, true, kLost, kNever},
    {"lr_decay_steps", kKohya, true, kLost, kNever},
    {"lr_scheduler_num_cycles_ratio", kKohya, true, kLost,
     "--lr_scheduler_num_cycles is a number of cycles"},
    {"lr_warmup_ratio", kKohya, true, kLost, "--lr_warmup_steps is a number of steps"},
    {"max_train_epochs", kKohya, true, kRenamed, "num_epochs"},
    {"model_prediction_type", kKohya, true, kRead, "the model predicts the velocity (raw)"},
    {"loss_type", kKohya, true, kRead, kLoss},
    {"huber_schedule", kKohya, true, kIdle, kLoss},
    {"huber_c", kKohya, true, kIdle, kLoss},
    {"huber_scale", kKohya, true, kIdle, kLoss},
    {"min_snr_gamma", kKohya, true, kLost, kLoss},
    {"debiased_estimation_loss", kKohya, false, kLost, kLoss},
    {"prior_loss_weight", kKohya, true, kIdle, kNever},
    {"noise_offset", kKohya, true, kLost, kNever},
    {"noise_offset_random_strength", kKohya, false, kLost, kNever},
    {"adaptive_noise_scale", kKohya, true, kLost, kNever},
    {"multires_noise_iterations", kKohya, true, kLost, kNever},
    {"multires_noise_discount", kKohya, true, kIdle, kNever},
    {"ip_noise_gamma", kKohya, true, kLost, kNever},
    {"ip_noise_gamma_random_strength", kKohya, false, kLost, kNever},
    {"zero_terminal_snr", kKohya, false, kLost, kNever},
    {"preserve_distribution_shape", kKohya, false, kIdle, "a part of the table keeps its shape"},
    {"num_timestep_buckets", kKohya, true, kLost, kNever},
    {"min_timestep", kKohya, true, kRead,
     "use --max_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    {"max_timestep", kKohya, true, kRead,
     "use --min_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    // What is written.
    {"output_dir", kKohya, true, kRenamed, "output_path"},
    {"output_name", kKohya, true, kIdle, kNames},
    {"save_model_as", kKohya, true, kIdle, "files are always safetensors"},
    {"use_safetensors", kKohya, false, kIdle, "files are always safetensors"},
    {"save_precision", kKohya, true, kRead, "use --save_dtype"},
    {"save_every_n_steps", kKohya, true, kRenamed, "save_steps"},
    {"save_every_n_epochs", kKohya, true, kRead,
     "weights are saved after each epoch unless --save_steps is given"},
    {"save_n_epoch_ratio", kKohya, true, kIdle, "weights are saved after each epoch"},
    {"save_last_n_steps", kKohya, true, kRead, "--weights_total_limit is a number of files"},
    {"save_last_n_epochs", kKohya, true, kRenamed, "weights_total_limit"},
    {"save_last_n_steps_state", kKohya, true, kIdle,
     "--checkpoints_total_limit is a number of checkpoints"},
    {"save_last_n_epochs_state", kKohya, true, kRenamed, "checkpoints_total_limit"},
    {"save_state_on_train_end", kKohya, false, kFixed, "--save_state"},
    {"initial_step", kKohya, true, kLost, kResumed},
    {"initial_epoch", kKohya, true, kLost, kResumed},
    {"skip_until_initial_step", kKohya, false, kIdle, kResumed},
    {"log_with", kKohya, true, kIdle, kLogs},
    {"logging_dir", kKohya, true, kIdle, kLogs},
    {"log_prefix", kKohya, true, kIdle, kLogs},
    {"log_tracker_name", kKohya, true, kIdle, kLogs},
    {"log_tracker_config", kKohya, true, kIdle, kLogs},
    {"log_config", kKohya, false, kIdle, "config.toml in --output_path holds every flag"},
    {"output_config", kKohya, false, kIdle, "config.toml in --output_path holds every flag"},
    {"wandb_run_name", kKohya, true, kIdle, kLogs},
    {"wandb_api_key", kKohya, true, kIdle, kLogs},
    {"huggingface_repo_id", kKohya, true, kIdle, kNotUploaded},
    {"huggingface_repo_type", kKohya, true, kIdle, kNotUploaded},
    {"huggingface_path_in_repo", kKohya, true, kIdle, kNotUploaded},
    {"huggingface_token", kKohya, true, kIdle, kNotUploaded},
    {"huggingface_repo_visibility", kKohya, true, kIdle, kNotUploaded},
    {"save_state_to_huggingface", kKohya, false, kIdle, kNotUploaded},
    {"async_upload", kKohya, false, kIdle, kNotUploaded},
    {"sample_sampler", kKohya, true, kIdle, "previews are drawn with the family's own solver"},
    {"sample_batch_size", kKohya, true, kIdle, "previews are drawn one by one"},
    {"validate_every_n_steps", kKohya, true, kRenamed, "validation_steps"},
    {"validate_every_n_epochs", kKohya, true, kLost, "--validation_steps counts steps"},
    {"validation_split", kKohya, true, kLost,
     "--validation_dataset_base_path is a dataset of its own"},
    {"validation_seed", kKohya, true, kIdle, "validation always has the same noise"},
    {"max_validation_steps", kKohya, true, kIdle, "the whole validation dataset is used"},
    // Flags of other trainers, and of DiffSynth-Studio's past.
    {"lr", kTrainer, true, kRenamed, "learning_rate"},
    {"rank", kTrainer, true, kRenamed, "lora_rank"},
    {"steps", kTrainer, true, kRenamed, "max_train_steps"},
    {"num_train_epochs", kTrainer, true, kRenamed, "num_epochs"},
    {"checkpointing_steps", kTrainer, true, kRenamed, "save_steps"},
    {"instance_data_dir", kTrainer, true, kRenamed, "dataset_base_path"},
    {"use_bf16", kTrainer | kSampler, false, kFixed, "--dtype bfloat16"},
    {"bf16", kTrainer | kSampler, false, kFixed, "--dtype bfloat16"},
    {"use_activation_checkpointing", kTrainer, false, kFixed, "--use_gradient_checkpointing"},
    {"enable_fp8_training", kTrainer, false, kFixed, "--storage dit=fp8"},
    {"align_to_opensource_format", kTrainer, false, kIdle,
     "--lora_format chooses the spelling of files"},
    {"dataset_input_configs", kTrainer, true, kIdle,
     "--data_file_keys names the columns with paths"},
    {"guidance_scale", kTrainer, true, kLost, "guidance is a matter of sampling"},
    {"report_to", kTrainer, true, kIdle, "--enable_tensorboard_log is on"},
    // What diffusers, DiffSynth-Studio, kohya's and other programs call settings of an image.
    {"guidance_scale", kSampler, true, kRenamed, "cfg_scale"},
    {"guidance_scale_2", kSampler, true, kRenamed, "cfg_scale_2"},
    {"true_cfg_scale", kSampler, true, kRenamed, "cfg_scale"},
    {"cfg", kSampler, true, kRenamed, "cfg_scale"},
    {"cfg_trunc_ratio", kSampler, true, kRenamed, "cfg_trunc"},
    {"cfg_normalization", kSampler, true, kFixed, "--cfg_renorm row"},
    {"num_images_per_prompt", kSampler, true, kRenamed, "num_images"},
    {"generator", kSampler, true, kRenamed, "seed"},
    {"image", kSampler, true, kRenamed, "input_image"},
    {"strength", kSampler, true, kRenamed, "denoising_strength"},
    {"shift", kSampler, true, kRenamed, "flow_shift"},
    {"max_sequence_length", kSampler, true, kIdle, "the family's own limit holds"},
    {"torch_dtype", kSampler, true, kRenamed, "dtype"},
    {"precision", kSampler, true, kRenamed, "dtype"},
    {"mixed_precision", kSampler, true, kRenamed, "dtype"},
    {"fp16", kSampler, false, kFixed, "--dtype float16"},
    {"fp8", kSampler, false, kFixed, "--storage dit=fp8"},
    {"compile", kSampler, false, kIdle, kFused},
    {"pretrained_model_name_or_path", kSampler, true, kRenamed, "model_paths"},
    {"model", kSampler, true, kRenamed, "model_paths"},
    {"ckpt", kSampler, true, kRenamed, "model_paths"},
    {"lora_path", kSampler, true, kFixed, "--lora PATH:STRENGTH"},
    {"lora_weights", kSampler, true, kFixed, "--lora PATH:STRENGTH"},
    {"lora_scale", kSampler, true, kFixed, "--lora PATH:STRENGTH"},
    {"cpu_offload", kSampler, false, kRead, kPlacement},
    {"enable_model_cpu_offload", kSampler, false, kRead, kPlacement},
    {"blocks_to_swap", kSampler, true, kRead, kPlacement},
    {"vram_limit", kSampler, true, kRenamed, "vram"},
    {"vae_tiling", kSampler, false, kRenamed, "tiled"},
    {"output_path", kSampler, true, kRenamed, "output"},
    {"output_dir", kSampler, true, kRenamed, "output"},
    {"save_path", kSampler, true, kRenamed, "output"},
    {"from_file", kSampler, true, kLost, kOneByOne},
    {"interactive", kSampler, false, kLost, kOneByOne},
    {"save_file", kSampler, true, kRenamed, "output"},
    {"ckpt_dir", kSampler, true, kModel, kModelPaths},
    {"gemma2_path", kSampler, true, kModel, kModelPaths},
    {"ae_path", kSampler, true, kModel, kModelPaths},
    {"dit_high_noise", kSampler, true, kRead, kModelPaths},
    {"gemma2_dtype", kSampler, true, kIdle, kDtypes},
    {"ae_dtype", kSampler, true, kIdle, kDtypes},
    {"infer_steps", kSampler, true, kRenamed, "num_inference_steps"},
    {"sample_steps", kSampler, true, kRenamed, "num_inference_steps"},
    {"steps", kSampler, true, kRenamed, "num_inference_steps"},
    {"sample_shift", kSampler, true, kRenamed, "flow_shift"},
    {"discrete_flow_shift", kSampler, true, kRenamed, "flow_shift"},
    {"sample_guide_scale", kSampler, true, kRenamed, "cfg_scale"},
    {"guidance_scale_high_noise", kSampler, true, kRenamed, "cfg_scale"},
    {"sample_solver", kSampler, true, kRenamed, "solver"},
    {"timestep_boundary", kSampler, true, kRenamed, "switch_boundary"},
    {"renorm_cfg", kSampler, true, kFixed, "--cfg_renorm clamp"},
    {"base_seed", kSampler, true, kRenamed, "seed"},
    {"video_length", kSampler, true, kRenamed, "num_frames"},
    {"frame_num", kSampler, true, kRenamed, "num_frames"},
    {"image_width", kSampler, true, kRenamed, "width"},
    {"image_height", kSampler, true, kRenamed, "height"},
    {"image_size", kSampler, true, kRead, "use --height and --width"},
    {"video_size", kSampler, true, kRead, "use --height and --width"},
    {"size", kSampler, true, kRead, "use --width and --height"},
    {"task", kSampler, true, kRead, kVariant},
    {"image_path", kSampler, true, kRenamed, "input_image"},
    {"end_image_path", kSampler, true, kRenamed, "end_image"},
    {"video_path", kSampler, true, kRenamed, "input_video"},
    {"mask_path", kSampler, true, kRenamed, "inpaint_mask"},
    {"control_image_path", kSampler, true, kRead, "the family's inputs are flags"},
    {"lora_weight", kSampler, true, kFixed, "--lora PATH:STRENGTH"},
    {"lora_multiplier", kSampler, true, kFixed, "--lora PATH:STRENGTH"},
    {"lora_weight_high_noise", kSampler, true, kFixed, "--lora PATH:STRENGTH@dit"},
    {"lora_multiplier_high_noise", kSampler, true, kFixed, "--lora PATH:STRENGTH@dit"},
    {"merge_lora_weights", kSampler, false, kFixed, "--lora_mode merge"},
    {"lycoris", kSampler, false, kIdle, "--lora reads such files, too"},
    {"ulysses_size", kSampler, true, kRenamed, "sequence_parallel"},
    {"fp8_t5", kSampler, false, kFixed, "--storage text_encoder=fp8"},
    {"fp8_vl", kSampler, false, kFixed, "--storage text_encoder=fp8"},
    {"fp8_fast", kSampler, false, kFixed, "--compute dit=w8a8"},
    {"vae_enable_tiling", kSampler, false, kFixed, "--tiled"},
    {"dit_fsdp", kSampler, false, kIdle, kPlanned},
    {"t5_fsdp", kSampler, false, kIdle, kPlanned},
    {"t5_cpu", kSampler, false, kIdle, kPlanned},
    {"text_encoder_cpu", kSampler, false, kIdle, kPlanned},
    {"offload_model", kSampler, true, kIdle, kPlanned},
    {"convert_model_dtype", kSampler, false, kIdle, "--dtype is that of the files"},
    {"attn_mode", kSampler, true, kIdle, kAttention},
    {"compile_args", kSampler, true, kIdle, kFused},
    {"cpu_noise", kSampler, false, kIdle, "noise is the same on every device"},
    {"gemma2_max_token_length", kSampler, true, kIdle, "the family's own limit holds"},
    {"embedded_cfg_scale", kSampler, true, kIdle, kOtherModels},
    {"resize_control_to_official_size", kSampler, false, kIdle,
     "pictures are brought to that size"},
    {"output_type", kSampler, true, kRead, "--output says it by how the name ends"},
    {"add_system_prompt_to_negative_prompt", kSampler, false, kLost, kNever},
    {"resize_control_to_image_size", kSampler, false, kLost, kNever},
    {"append_original_name", kSampler, false, kLost, "--output names the file"},
    {"include_patterns", kSampler, true, kLost, "--lora takes a file whole"},
    {"exclude_patterns", kSampler, true, kLost, "--lora takes a file whole"},
    {"save_merged_model", kSampler, true, kLost, "atelier lora merge writes it"},
    {"latent_path", kSampler, true, kLost, kNever},
    {"one_frame_inference", kSampler, true, kLost, kNever},
    {"control_path", kSampler, true, kLost, kNever},
    {"control_image_mask_path", kSampler, true, kLost, kNever},
    {"trim_tail_frames", kSampler, true, kLost, kNever},
    {"output_layers", kSampler, true, kLost, kNever},
    {"cfg_skip_mode", kSampler, true, kLost, kSpeedUp},
    {"cfg_apply_ratio", kSampler, true, kLost, "use --cfg_trunc"},
    {"slg_layers", kSampler, true, kLost, kNever},
    {"slg_mode", kSampler, true, kLost, kNever},
    {"rcm_threshold", kSampler, true, kLost, kNever},
    {"use_prompt_extend", kSampler, false, kLost, "prompts are taken as they stand"},
    {"src_root_path", kSampler, true, kLost, kOtherModels},
    {"audio", kSampler, true, kLost, "no input is sound"},
    {"enable_tts", kSampler, false, kLost, "no input is sound"},
    {"pose_video", kSampler, true, kLost, kOtherModels},
    {"lr", kSampler, true, kIdle, "a learning rate is a matter of training"},
    {"learning_rate", kSampler, true, kIdle, "a learning rate is a matter of training"},
    // Flags of DiffSynth-Studio: atelier train takes them, so that its command lines run as they
    // are.
    {"find_unused_parameters", kStudio, false, kIdle,
     "parameters without a gradient are never in the way", "unused parameters never are in the way",
     ""},
    {"remove_prefix_in_ckpt", kStudio, true, kIdle, "names in saved files never have such a prefix",
     "names in saved files have no such prefix", ""},
    {"customized_optimizer", kStudio, true, kLost, "optimizers are chosen by name",
     "use optimizer_type", "--optimizer_type"},
    {"quant_options", kStudio, true, kLost, "weights are kept in 8 bits by another flag",
     "use storage, which keeps weights in fp8 or int8", "--storage"},
    {"template_model_id_or_path", kStudio, true, kIdle, "no family has templates", "", ""},
    {"enable_lora_hot_loading", kStudio, false, kIdle, "LoRAs are always loaded so",
     "LoRAs are always loaded so", ""},
    {"enable_swanlab_log", kStudio, false, kIdle, kNoLog, "use enable_tensorboard_log",
     "--enable_tensorboard_log"},
    {"swanlab_project", kStudio, true, kIdle, kNoLog, "", ""},
    {"enable_wandb_log", kStudio, false, kIdle, kNoLog, "use enable_tensorboard_log",
     "--enable_tensorboard_log"},
    {"wandb_project", kStudio, true, kIdle, kNoLog, "", ""},
    {"processor_path", kStudio, true, kIdle, "the numbers of processors are built in",
     "use tokenizer_path", "--tokenizer_path"},
    {"audio_processor_path", kStudio, true, kIdle, "no input is sound", "no input is sound", ""},
    {"framewise_decoding", kStudio, false, kLost, "no family has models that are trained so",
     "models that need it are not there", ""},
    {"initialize_model_on_cpu", kStudio, false, kIdle,
     "weights are read into the memory of --device", "weights are read into the memory of --device",
     ""},
    {"offload_models", kStudio, true, kIdle,
     "components that a stage does not need are not loaded anyway",
     "what a stage does not need is not loaded anyway", ""},
};

// Flags of kStudio that stand beside others in the help.
bool has_own_place(std::string_view name) {
  return name == "initialize_model_on_cpu" || name == "offload_models";
}

std::string program_of(unsigned origins) {
  if (origins & kKohya) return "kohya's trainers";
  if (origins & kLauncher) return "a launcher, not of train";
  return origins & kTrainer ? "other trainers" : "";
}

// What to do about one: "use --lora_rank".
std::string hint_of(const CompatFlag& flag) {
  const std::string text(flag.text);
  switch (flag.fate) {
    case kRenamed:
      return "use --" + text;
    case kFixed:
      return "use " + text;
    case kIdle:
    case kLost:
      return text + ": leave it out";
    case kModel:
    case kRead:
      break;
  }
  return text;
}

FlagSpec spec_of(const CompatFlag& flag) {
  std::string help = flag.fate == kLost ? "refused" : "no effect";
  if (!flag.help.empty()) help += ": " + std::string(flag.help);
  return {.name = std::string(flag.name),
          .kind = flag.has_value ? FlagKind::kText : FlagKind::kFlag,
          .help = std::move(help),
          .preset = flag.has_value ? "" : "false"};
}

// Given, and not to say no.
bool is_wanted(const ParsedFlags& flags, std::string_view name) {
  if (!flags.is_given(name)) return false;
  const std::string text = flags.find_text(name).value_or("");
  for (const std::string_view no : {"", "false", "False", "0", "off", "no"}) {
    if (text == no) return false;
  }
  return true;
}

}  // namespace

const CompatFlag* find_compat_flag(std::string_view name, unsigned origins) {
  const auto* it = std::ranges::find_if(kFlags, [&](const CompatFlag& flag) {
    return (flag.origins & origins) != 0 && flag.name == name;
  });
  return it == std::end(kFlags) ? nullptr : it;
}

std::vector<OtherFlag> compat_answers(unsigned origins) {
  std::vector<OtherFlag> answers;
  for (const CompatFlag& flag : kFlags) {
    if (const unsigned asked = flag.origins & origins; asked != 0)
      answers.push_back({flag.name, flag.has_value, hint_of(flag), program_of(asked)});
  }
  return answers;
}

FlagSpec compat_spec(std::string_view name) {
  return spec_of(*find_compat_flag(name, kStudio));
}

std::vector<FlagSpec> compat_specs() {
  std::vector<FlagSpec> specs;
  for (const CompatFlag& flag : kFlags) {
    if (flag.origins == kStudio && !has_own_place(flag.name)) specs.push_back(spec_of(flag));
  }
  return specs;
}

std::vector<std::string> note_compat_flags(const ParsedFlags& flags, report::Problems& problems) {
  std::vector<std::string> notes;
  for (const CompatFlag& flag : kFlags) {
    if (flag.origins != kStudio || !is_wanted(flags, flag.name)) continue;
    const std::string place = flags.place(flag.name);
    const std::string use = flag.use.empty() ? "" : "use " + std::string(flag.use);
    if (flag.fate == kLost) {
      problems.add(place + ": " + std::string(flag.text), use.empty() ? "leave it out" : use);
      continue;
    }
    notes.push_back(place + " has no effect: " + std::string(flag.text) +
                    (use.empty() ? "" : "; " + use));
  }
  return notes;
}

}  // namespace atelier::flags
