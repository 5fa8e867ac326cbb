#include "host/flags/compat_flags.h"

#include <algorithm>
#include <iterator>
#include <unistd.h>

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
constexpr std::string_view kMemory = "--vram plans what rests where, and the results are the same";
constexpr std::string_view kSending =
    "gradients are sent in buckets of 25 MiB, and the results are the same";
constexpr std::string_view kSaved = "weights are always saved whole";
constexpr std::string_view kEachMachine = "run atelier launch on each machine, with --node_rank";
constexpr std::string_view kNotHere = "leave it out: there is nothing like it here";
constexpr std::string_view kNoLog = "there is no such log";

constexpr CompatRow kRows[] = {
    // Launchers: accelerate launch, torchrun and deepspeed, their command lines and their files.
    {kLauncher | kAccelerate, "mixed_precision=", kRead,
     "--dtype says what weights are kept and computed in"},
    {kLauncher | kAccelerate, "num_processes= num_machines= machine_rank=", kRead, kLaunched},
    {kLauncher, "multi_gpu nnodes= num_nodes= node_rank= rdzv_endpoint=", kRead, kLaunched},
    {kLauncher, "nproc_per_node= nproc-per-node= num_gpus=", kLaunch, "nproc_per_node"},
    {kLauncher | kAccelerate, "main_process_ip=", kLaunch, "master_addr"},
    {kLauncher | kAccelerate, "main_process_port=", kLaunch, "master_port"},
    {kLauncher, "master_addr= master_port= config_file=", kLaunch},
    {kLauncher, "standalone", kIdle, kLaunched},
    {kLauncher | kAccelerate, "rdzv_backend=", kQuiet, kLaunched},
    {kLauncher, "local_addr=", kIdle, "GLOO_SOCKET_IFNAME names the network interface"},
    {kLauncher, "max_restarts=", kIdle,
     "torchrun --no-python … atelier train … --resume latest starts again"},
    {kLauncher, "include= exclude=", kLost,
     "put CUDA_VISIBLE_DEVICES=0,1 in front, and say how many processes there are"},
    {kLauncher, "hostfile=", kLost, kEachMachine},
    {kLauncher | kAccelerate, "gpu_ids=", kRead, "--device cuda:N chooses a GPU", "all"},
    {kLauncher, "cpu", kFixed, "device cpu"},
    {kLauncher, "use_deepspeed", kIdle, kAllPlanned},
    {kLauncher, "use_fsdp", kRead, "--zero_stage 3 divides the model among processes"},
    {kLauncher, "dynamo_mode=", kIdle, kFused},
    {kLauncher | kAccelerate | kKohya, "dynamo_backend=", kIdle, kFused},
    {kLauncher, "num_cpu_threads_per_process=", kIdle, "--threads is one for each core"},
    {kAccelerate, "use_cpu", kFixed, "device cpu"},
    {kAccelerate, "compute_environment=", kLost, "run atelier launch on the machines themselves",
     "LOCAL_MACHINE"},
    {kAccelerate, "distributed_type=", kRead, "MULTI_GPU, DEEPSPEED and FSDP are known",
     "MULTI_GPU MULTI_CPU DEEPSPEED"},
    {kAccelerate, "deepspeed_config fsdp_config", kRead},
    {kAccelerate, "dynamo_config", kIdle, kFused},
    {kAccelerate, "enable_cpu_affinity", kIdle,
     "processes run on the cores that the system gives them"},
    {kAccelerate, "debug", kIdle, "what ranks exchange is always compared"},
    {kAccelerate, "downcast_bf16", kIdle, "it is about TPUs"},
    {kAccelerate,
     "same_network main_training_function tpu_env tpu_name tpu_zone tpu_vm tpu_use_cluster "
     "tpu_use_sudo commands command_file",
     kQuiet},
    {kAccelerate, "fp8_config", kLost, "use --storage dit=fp8"},
    {kAccelerate, "fp16", kLost, "use mixed_precision: bf16"},
    {kAccelerate, "mpirun_config", kLost,
     "start the processes with mpirun instead of atelier launch"},
    {kAccelerate, "megatron_lm_config parallelism_config", kLost, kNotHere},
    {kLauncher | kDeepSpeedPlugin,
     "deepspeed_config_file= zero_stage= offload_optimizer_device= offload_param_device=", kRead,
     kAllPlanned},
    {kLauncher | kDeepSpeedPlugin, "offload_optimizer_nvme_path= offload_param_nvme_path=", kIdle,
     "nothing is kept on a disk"},
    {kLauncher | kDeepSpeedPlugin | kDeepSpeed, "gradient_accumulation_steps=", kRenamed},
    {kLauncher | kDeepSpeedPlugin | kDeepSpeed, "gradient_clipping=", kRenamed, "max_grad_norm"},
    {kLauncher | kDeepSpeedPlugin, "zero3_init_flag=", kIdle,
     "weights are read into the place that they are planned for"},
    {kLauncher | kDeepSpeedPlugin, "zero3_save_16bit_model=", kIdle, kSaved},
    {kLauncher | kDeepSpeedPlugin, "deepspeed_hostfile=", kLost, kEachMachine},
    {kLauncher | kDeepSpeedPlugin, "deepspeed_exclusion_filter= deepspeed_inclusion_filter=", kLost,
     "run atelier launch on the machines that are meant"},
    {kLauncher | kDeepSpeedPlugin, "deepspeed_multinode_launcher=", kQuiet, kLaunched},
    {kLauncher | kDeepSpeedPlugin, "deepspeed_moe_layer_cls_names=", kIdle, kMemory},
    {kLauncher | kFsdp, "fsdp_activation_checkpointing=", kRenamed, "use_gradient_checkpointing"},
    {kLauncher | kFsdp, "fsdp_offload_params=", kRenamed, "optimize_on_cpu"},
    {kLauncher | kFsdp, "fsdp_sharding_strategy= fsdp_reshard_after_forward=", kRead,
     "use --zero_stage and --zero_group"},
    {kLauncher | kFsdp,
     "fsdp_auto_wrap_policy= fsdp_transformer_layer_cls_to_wrap= fsdp_min_num_params= "
     "fsdp_backward_prefetch= fsdp_backward_prefetch_policy= fsdp_forward_prefetch= "
     "fsdp_cpu_ram_efficient_loading=",
     kIdle, kMemory},
    {kLauncher | kFsdp, "fsdp_version= fsdp_sync_module_states= fsdp_use_orig_params=", kQuiet,
     kMemory},
    {kLauncher | kFsdp, "fsdp_state_dict_type=", kIdle, kSaved},
    {kDeepSpeed, "zero_optimization bf16 fp16", kRead},
    {kDeepSpeed, "train_micro_batch_size_per_gpu", kRenamed, "batch_size"},
    {kDeepSpeed, "train_batch_size", kRenamed, "global_batch_size"},
    {kDeepSpeed, "activation_checkpointing", kIdle, kMemory},
    {kDeepSpeed,
     "wall_clock_breakdown steps_per_print dump_state memory_breakdown flops_profiler comms_logger "
     "tensorboard wandb csv_monitor",
     kIdle, "progress and metrics are written to --output_path"},
    {kDeepSpeed, "aio", kIdle, "nothing is kept on a disk"},
    {kDeepSpeed, "checkpoint", kIdle, kSaved},
    {kDeepSpeed, "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer disable_allgather",
     kQuiet},
    {kDeepSpeed, "prescale_gradients", kIdle, kSending},
    {kDeepSpeed, "optimizer", kLost, "use --optimizer_type and the flags beside it"},
    {kDeepSpeed, "scheduler", kLost, "use --lr_scheduler and --lr_warmup_steps"},
    {kDeepSpeed, "communication_data_type data_types", kLost,
     "leave it out: gradients are summed as they are"},
    {kDeepSpeed, "amp", kLost, "use bf16"},
    {kDeepSpeed, "torch_autocast", kLost, "use --dtype bfloat16"},
    {kDeepSpeed, "elasticity", kLost,
     "torchrun --max_restarts starts again, with any number of processes"},
    {kDeepSpeed,
     "gradient_predivide_factor sparse_gradients sparse_attention data_efficiency "
     "curriculum_learning progressive_layer_drop eigenvalue compression_training",
     kLost, kNotHere},
    {kZero, "stage offload_optimizer offload_param", kRead},
    {kZero, "cpu_offload", kRenamed, "optimize_on_cpu"},
    {kZero, "zero_quantized_weights zero_quantized_gradients", kLost, kNotHere},
    {kZero, "zero_quantized_nontrainable_weights", kLost, "use --storage dit=int8"},
    {kZero,
     "allgather_partitions allgather_bucket_size overlap_comm reduce_scatter reduce_bucket_size",
     kIdle, kSending},
    {kZero,
     "zero_hpz_partition_size contiguous_gradients round_robin_gradients sub_group_size "
     "stage3_prefetch_bucket_size stage3_param_persistence_threshold stage3_max_live_parameters "
     "stage3_max_reuse_distance memory_efficient_linear",
     kIdle, kMemory},
    {kZero,
     "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
     "elastic_checkpoint",
     kIdle, kSaved},
    {kZero, "load_from_fp32_weights ignore_unused_parameters", kQuiet},
    // Kohya's trainers.
    {kKohya, "pretrained_model_name_or_path= gemma2= ae=", kModel, kModelPaths},
    {kKohya | kSampler, "vae= dit= t5= clip= text_encoder=", kModel, kModelPaths},
    {kKohya | kSampler, "model_version= edit edit_plus", kRead, kVariant},
    {kKohya, "dit_high_noise=", kLost,
     "a LoRA there is of both denoisers; --lora_base_model dit,dit2 learns one for each"},
    {kKohya, "timestep_boundary=", kIdle, "it goes with --dit_high_noise"},
    {kKohya | kSampler, "offload_inactive_dit use_pinned_memory_for_block_swap", kIdle, kPlanned},
    {kSampler, "lazy_loading", kIdle, kPlanned},
    {kKohya | kSampler, "force_v2_1_time_embedding", kLost, kNever},
    {kKohya, "dit_dtype=", kRenamed, "dtype"},
    {kKohya | kSampler, "vae_dtype=", kIdle, kDtypes},
    {kKohya, "text_encoder_dtype=", kIdle, kDtypes},
    {kKohya | kSampler, "disable_numpy_memmap", kIdle, kReadWhole},
    {kKohya, "gemma2_max_token_length= max_token_length=", kIdle, "the family's own limit holds"},
    {kKohya, "tokenizer_cache_dir=", kIdle, "tokenizers are read from the model's folder"},
    {kKohya, "disable_mmap_load_safetensors", kIdle, kReadWhole},
    {kKohya, "no_half_vae", kIdle, "--dtype bfloat16,vae=float32 keeps the VAE in float32"},
    {kKohya, "clip_skip= v2 v_parameterization", kIdle, kOtherModels},
    {kKohya, "network_module=", kRead, "--lora_base_model dit trains a LoRA"},
    {kKohya, "network_dim=", kRenamed, "lora_rank"},
    {kKohya, "network_alpha=", kRenamed, "lora_alpha"},
    {kKohya, "network_dropout=", kRenamed, "lora_dropout"},
    {kKohya, "network_weights=", kRenamed, "lora_checkpoint"},
    {kKohya, "dim_from_weights", kLost, "--lora_rank is the rank of the file"},
    {kKohya, "network_args=", kLost,
     "--lora_target_modules chooses layers, --lora_rank their rank"},
    {kKohya, "network_train_unet_only", kIdle, "--lora_base_model dit trains nothing else"},
    {kKohya, "network_train_text_encoder_only", kFixed, "lora_base_model text_encoder"},
    {kKohya, "base_weights=", kRenamed, "preset_lora_path"},
    {kKohya, "base_weights_multiplier=", kLost, "--preset_lora_path has strength 1"},
    {kKohya,
     "scale_weight_norms= reg_data_dir= dataset_class= conditioning_data_dir= one_frame "
     "remove_first_image_from_target use_lion_optimizer lr_scheduler_timescale= "
     "lr_scheduler_min_lr_ratio= lr_decay_steps= noise_offset= noise_offset_random_strength "
     "adaptive_noise_scale= multires_noise_iterations= ip_noise_gamma= "
     "ip_noise_gamma_random_strength zero_terminal_snr num_timestep_buckets=",
     kLost, kNever},
    {kKohya, "noise_offset_type=", kIdle, "it goes with --noise_offset"},
    {kKohya, "training_comment=", kIdle, "metadata holds settings of the layers, and no comment"},
    {kKohya, "no_metadata", kIdle, "metadata holds settings of the layers, and no data"},
    {kKohya, "train_data_dir=", kRead,
     "use --dataset_base_path, and --dataset_repeat for the N of a folder N_words"},
    {kKohya, "dataset_config=", kRead, "use --dataset_base_path and the flags of the group Size"},
    {kKohya, "in_json=", kRenamed, "dataset_metadata_path"},
    {kKohya, "dataset_repeats=", kRenamed, "dataset_repeat"},
    {kKohya, "resolution=", kRead,
     "use --height and --width, or --max_pixels with --enable_bucket"},
    {kKohya, "train_batch_size=", kRenamed, "batch_size"},
    {kKohya, "max_data_loader_n_workers= num_workers=", kRenamed, "dataset_num_workers"},
    {kKohya, "persistent_data_loader_workers", kIdle, "workers live as long as the run"},
    {kKohya,
     "shuffle_caption secondary_separator= caption_prefix= caption_suffix= enable_wildcard "
     "caption_tag_dropout_rate=",
     kLost, kCaptions},
    {kKohya, "keep_tokens= keep_tokens_separator= caption_separator=", kIdle, kCaptions},
    {kKohya, "caption_dropout_every_n_epochs=", kLost, "--caption_dropout_rate drops by chance"},
    {kKohya, "color_aug flip_aug random_crop face_crop_aug_range=", kLost, kNoAugmentation},
    {kKohya, "resize_interpolation=", kIdle, "images are scaled as DiffSynth-Studio does"},
    {kKohya, "masked_loss", kLost, "--mask_column or --alpha_mask says where the loss counts"},
    {kKohya,
     "vae_batch_size= text_encoder_batch_size= cache_latents cache_latents_to_disk "
     "cache_text_encoder_outputs cache_text_encoder_outputs_to_disk skip_cache_check",
     kIdle, kAlwaysEncoded},
    {kKohya, "skip_existing", kIdle, "what is in --cache_path already is never made again"},
    {kKohya, "keep_cache", kIdle, "entries of other samples stay"},
    {kKohya, "i2v", kRead, "--extra_inputs names the inputs that are learnt with"},
    {kKohya, "cache_info", kIdle, "headers of images are read at every start"},
    {kKohya, "gradient_checkpointing", kFixed, "use_gradient_checkpointing"},
    {kKohya, "gradient_checkpointing_cpu_offload cpu_offload_checkpointing", kFixed,
     "use_gradient_checkpointing_offload"},
    {kKohya, "full_bf16 full_fp16", kFixed, "dtype bfloat16"},
    {kKohya, "fp8_base fp8_base_unet", kFixed, "storage dit=fp8"},
    {kKohya | kSampler, "fp8_scaled", kFixed, "storage dit=fp8"},
    {kKohya, "fp8_t5 fp8_vl blocks_to_swap= lowram highvram", kIdle, kPlanned},
    {kKohya | kSampler, "vae_cache_cpu vae_chunk_size= vae_spatial_tile_sample_min_size=", kIdle,
     kTiles},
    {kKohya | kSampler, "use_flash_attn use_sage_attn", kIdle, kAttention},
    {kKohya, "flash_attn flash3 sage_attn split_attn sdpa xformers mem_eff_attn", kIdle,
     kAttention},
    {kKohya | kSampler, "torch_compile", kIdle, kFused},
    {kKohya, "fused_backward_pass blockwise_fused_optimizers", kFixed, "optimize_on_cpu"},
    {kKohya, "mem_eff_save", kIdle, "files are always written so"},
    {kKohya, "ddp_timeout=", kLost, "give --dist_timeout, in seconds"},
    {kKohya, "ddp_gradient_as_bucket_view ddp_static_graph", kIdle, kBuckets},
    {kKohya, "use_8bit_adam", kFixed, "optimizer_type AdamW8bit"},
    {kKohya, "unet_lr=", kRenamed, "learning_rate"},
    {kKohya, "text_encoder_lr=", kIdle, "one rate holds for all: --learning_rate"},
    {kKohya, "lr_scheduler_type=", kLost, "--lr_scheduler chooses by name"},
    {kKohya, "lr_scheduler_args=", kLost,
     "--lr_scheduler_num_cycles and --lr_scheduler_power are flags"},
    {kKohya, "lr_scheduler_num_cycles_ratio=", kLost,
     "--lr_scheduler_num_cycles is a number of cycles"},
    {kKohya, "lr_warmup_ratio=", kLost, "--lr_warmup_steps is a number of steps"},
    {kKohya, "max_train_epochs=", kRenamed, "num_epochs"},
    {kKohya, "model_prediction_type=", kLost, "the model predicts the velocity (raw)", "raw"},
    {kKohya, "loss_type=", kLost, kLoss, "l2"},
    {kKohya, "huber_schedule= huber_c= huber_scale=", kIdle, kLoss},
    {kKohya, "min_snr_gamma= debiased_estimation_loss", kLost, kLoss},
    {kKohya, "prior_loss_weight= multires_noise_discount=", kIdle, kNever},
    {kKohya, "preserve_distribution_shape", kIdle, "a part of the table keeps its shape"},
    {kKohya, "min_timestep=", kRead,
     "use --max_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    {kKohya, "max_timestep=", kRead,
     "use --min_timestep_boundary: N of 1000 is 1 - N / 1000 there"},
    {kKohya, "output_dir=", kRenamed, "output_path"},
    {kKohya, "output_name=", kIdle, kNames},
    {kKohya, "save_model_as= use_safetensors", kIdle, "files are always safetensors"},
    {kKohya, "save_precision=", kRead, "use --save_dtype"},
    {kKohya, "save_every_n_steps=", kRenamed, "save_steps"},
    {kKohya, "save_every_n_epochs=", kLost,
     "weights are saved after each epoch unless --save_steps is given", "1"},
    {kKohya, "save_n_epoch_ratio=", kIdle, "weights are saved after each epoch"},
    {kKohya, "save_last_n_steps=", kLost, "--weights_total_limit is a number of files"},
    {kKohya, "save_last_n_epochs=", kRenamed, "weights_total_limit"},
    {kKohya, "save_last_n_steps_state=", kIdle,
     "--checkpoints_total_limit is a number of checkpoints"},
    {kKohya, "save_last_n_epochs_state=", kRenamed, "checkpoints_total_limit"},
    {kKohya, "save_state_on_train_end", kFixed, "save_state"},
    {kKohya, "initial_step= initial_epoch=", kLost, kResumed},
    {kKohya, "skip_until_initial_step", kIdle, kResumed},
    {kKohya,
     "log_with= logging_dir= log_prefix= log_tracker_name= log_tracker_config= wandb_run_name= "
     "wandb_api_key=",
     kIdle, kLogs},
    {kKohya, "log_config output_config", kIdle, "config.toml in --output_path holds every flag"},
    {kKohya,
     "huggingface_repo_id= huggingface_repo_type= huggingface_path_in_repo= huggingface_token= "
     "huggingface_repo_visibility= save_state_to_huggingface async_upload",
     kIdle, kNotUploaded},
    {kKohya, "sample_sampler=", kIdle, "previews are drawn with the family's own solver"},
    {kKohya, "sample_batch_size=", kIdle, "previews are drawn one by one"},
    {kKohya, "validate_every_n_steps=", kRenamed, "validation_steps"},
    {kKohya, "validate_every_n_epochs=", kLost, "--validation_steps counts steps"},
    {kKohya, "validation_split=", kLost, "--validation_dataset_base_path is a dataset of its own"},
    {kKohya, "validation_seed=", kIdle, "validation always has the same noise"},
    {kKohya, "max_validation_steps=", kIdle, "the whole validation dataset is used"},
    // Other trainers, and DiffSynth-Studio's past.
    {kTrainer, "lr=", kRenamed, "learning_rate"},
    {kTrainer, "rank=", kRenamed, "lora_rank"},
    {kTrainer, "steps=", kRenamed, "max_train_steps"},
    {kTrainer, "num_train_epochs=", kRenamed, "num_epochs"},
    {kTrainer, "checkpointing_steps=", kRenamed, "save_steps"},
    {kTrainer, "instance_data_dir=", kRenamed, "dataset_base_path"},
    {kTrainer | kSampler, "use_bf16 bf16", kFixed, "dtype bfloat16"},
    {kTrainer, "use_activation_checkpointing", kFixed, "use_gradient_checkpointing"},
    {kTrainer, "enable_fp8_training", kFixed, "storage dit=fp8"},
    {kTrainer, "align_to_opensource_format", kIdle, "--lora_format chooses the spelling of files"},
    {kTrainer, "dataset_input_configs=", kIdle, "--data_file_keys names the columns with paths"},
    {kTrainer, "guidance_scale=", kLost, "guidance is a matter of sampling"},
    {kTrainer, "report_to=", kIdle, "--enable_tensorboard_log is on"},
    // What diffusers, DiffSynth-Studio, kohya's and other programs call settings of an image.
    {kSampler,
     "guidance_scale= true_cfg_scale= cfg= sample_guide_scale= guidance_scale_high_noise=",
     kRenamed, "cfg_scale"},
    {kSampler, "guidance_scale_2=", kRenamed, "cfg_scale_2"},
    {kSampler, "cfg_trunc_ratio=", kRenamed, "cfg_trunc"},
    {kSampler, "cfg_normalization=", kFixed, "cfg_renorm row"},
    {kSampler, "num_images_per_prompt=", kRenamed, "num_images"},
    {kSampler, "generator= base_seed=", kRenamed, "seed"},
    {kSampler, "image= image_path=", kRenamed, "input_image"},
    {kSampler, "strength=", kRenamed, "denoising_strength"},
    {kSampler, "shift= sample_shift= discrete_flow_shift=", kRenamed, "flow_shift"},
    {kSampler, "max_sequence_length= gemma2_max_token_length=", kIdle,
     "the family's own limit holds"},
    {kSampler, "torch_dtype= precision= mixed_precision=", kRenamed, "dtype"},
    {kSampler, "fp16", kFixed, "dtype float16"},
    {kSampler, "fp8", kFixed, "storage dit=fp8"},
    {kSampler, "compile compile_args=", kIdle, kFused},
    {kSampler, "pretrained_model_name_or_path= model= ckpt=", kRenamed, "model_paths"},
    {kSampler, "lora_path= lora_weights= lora_scale= lora_weight= lora_multiplier=", kFixed,
     "lora PATH:STRENGTH"},
    {kSampler, "cpu_offload enable_model_cpu_offload blocks_to_swap=", kIdle, kPlacement},
    {kSampler, "vram_limit=", kRenamed, "vram"},
    {kSampler, "vae_tiling", kRenamed, "tiled"},
    {kSampler, "output_path= output_dir= save_path= save_file=", kRenamed, "output"},
    {kSampler, "from_file= interactive", kLost, kOneByOne},
    {kSampler, "ckpt_dir= gemma2_path= ae_path=", kModel, kModelPaths},
    {kSampler, "dit_high_noise=", kRead, kModelPaths},
    {kSampler, "gemma2_dtype= ae_dtype=", kIdle, kDtypes},
    {kSampler, "infer_steps= sample_steps= steps=", kRenamed, "num_inference_steps"},
    {kSampler, "sample_solver=", kRenamed, "solver"},
    {kSampler, "timestep_boundary=", kRenamed, "switch_boundary"},
    {kSampler, "renorm_cfg=", kFixed, "cfg_renorm clamp"},
    {kSampler, "video_length= frame_num=", kRenamed, "num_frames"},
    {kSampler, "image_width=", kRenamed, "width"},
    {kSampler, "image_height=", kRenamed, "height"},
    {kSampler, "image_size= video_size=", kRead, "use --height and --width"},
    {kSampler, "size=", kRead, "use --width and --height"},
    {kSampler, "task=", kRead, kVariant},
    {kSampler, "end_image_path=", kRenamed, "end_image"},
    {kSampler, "video_path=", kRenamed, "input_video"},
    {kSampler, "control_path=", kRenamed, "control_video"},
    {kSampler, "mask_path=", kRenamed, "inpaint_mask"},
    {kSampler, "control_image_path=", kRead, "the family's inputs are flags"},
    {kSampler, "lora_weight_high_noise= lora_multiplier_high_noise=", kFixed,
     "lora PATH:STRENGTH@dit"},
    {kSampler, "merge_lora_weights", kFixed, "lora_mode merge"},
    {kSampler, "lycoris", kIdle, "--lora reads such files, too"},
    {kSampler, "ulysses_size=", kRenamed, "sequence_parallel"},
    {kSampler, "fp8_t5 fp8_vl", kFixed, "storage text_encoder=fp8"},
    {kSampler, "fp8_fast", kFixed, "compute dit=w8a8"},
    {kSampler, "vae_enable_tiling", kFixed, "tiled"},
    {kSampler, "dit_fsdp t5_fsdp t5_cpu text_encoder_cpu offload_model=", kIdle, kPlanned},
    {kSampler, "convert_model_dtype", kIdle, "--dtype is that of the files"},
    {kSampler, "attn_mode=", kIdle, kAttention},
    {kSampler, "cpu_noise", kIdle, "noise is the same on every device"},
    {kSampler, "embedded_cfg_scale=", kIdle, kOtherModels},
    {kSampler, "resize_control_to_official_size", kIdle, "pictures are brought to that size"},
    {kSampler, "output_type=", kRead, "--output says it by how the name ends"},
    {kSampler,
     "add_system_prompt_to_negative_prompt resize_control_to_image_size latent_path= "
     "one_frame_inference= control_image_mask_path= output_layers= slg_layers= slg_mode= "
     "rcm_threshold=",
     kLost, kNever},
    {kSampler, "append_original_name", kLost, "--output names the file"},
    {kSampler, "include_patterns= exclude_patterns=", kLost, "--lora takes a file whole"},
    {kSampler, "save_merged_model=", kLost, "atelier lora merge writes it"},
    {kSampler, "trim_tail_frames=", kLost, kNever, "0"},
    {kSampler, "cfg_skip_mode=", kLost, kSpeedUp, "none"},
    {kSampler, "cfg_apply_ratio=", kLost, "use --cfg_trunc"},
    {kSampler, "use_prompt_extend", kLost, "prompts are taken as they stand"},
    {kSampler, "src_root_path= replace_flag audio= pose_video=", kRead,
     "the family's inputs are flags"},
    {kSampler, "use_relighting_lora", kRead, "use --lora relighting_lora.ckpt"},
    {kSampler, "refert_num=", kRenamed, "prev_segment_conditioning_frames"},
    {kSampler, "start_from_ref", kRenamed, "init_first_frame"},
    {kSampler, "num_clip=", kRead, "use --num_frames"},
    {kSampler, "infer_frames=", kLost, "the family says how many frames are made at a time", "80"},
    {kSampler, "enable_tts tts_prompt_audio= tts_prompt_text= tts_text=", kLost,
     "no speech is made of texts; give a sound"},
    {kSampler, "lr= learning_rate=", kIdle, "a learning rate is a matter of training"},
    // DiffSynth-Studio: atelier train takes its flags, so that its command lines run as they are.
    {kStudio, "find_unused_parameters", kIdle,
     "parameters without a gradient are never in the way"},
    {kStudio, "remove_prefix_in_ckpt=", kIdle, "names in saved files never have such a prefix"},
    {kStudio, "customized_optimizer=", kLost, "optimizers are chosen by name", "",
     "optimizer_type"},
    {kStudio, "template_model_id_or_path=", kIdle, "no family has templates"},
    {kStudio, "enable_lora_hot_loading", kIdle, "LoRAs are always loaded so"},
    {kStudio, "enable_swanlab_log enable_wandb_log", kIdle, kNoLog, "", "enable_tensorboard_log"},
    {kStudio, "swanlab_project= wandb_project=", kIdle, kNoLog},
    {kStudio, "processor_path=", kIdle, "the numbers of processors are built in", "",
     "tokenizer_path"},
    {kStudio, "audio_processor_path= audio_processor_config=", kIdle, "sounds need none"},
    {kStudio, "initialize_model_on_cpu", kIdle, "weights are read into the memory of --device"},
    {kStudio, "offload_models=", kIdle,
     "components that a stage does not need are not loaded anyway"},
    // Keys of the dataset files of kohya's trainers and of musubi-tuner. Others are kohya's flags.
    {kDataset, "image_dir= image_directory= video_directory=", kRenamed, "dataset_base_path"},
    {kDataset, "cache_directory=", kRenamed, "cache_path"},
    {kDataset, "control_directory=", kRenamed, "control_path"},
    {kDataset, "num_repeats=", kRenamed, "dataset_repeat"},
    {kDataset,
     "frame_stride= frame_sample= source_fps= batch_size= caption_extension= enable_bucket= "
     "min_bucket_reso= max_bucket_reso= bucket_reso_steps= bucket_no_upscale= "
     "caption_dropout_rate= alpha_mask=",
     kRenamed},
    {kDataset, "control_resolution= no_resize_control=", kLost,
     "the family says to which size images beside the ones to learn are brought",
     "false 1024 1024,1024"},
    {kDataset, "metadata_file=", kLost,
     "--dataset_metadata_path reads csv, json lists and jsonl with columns image and prompt"},
    {kDataset, "image_jsonl_file= video_jsonl_file=", kLost,
     "--dataset_metadata_path reads it when its columns video_path, image_path and caption are "
     "called video, image and prompt"},
    {kDataset, "class_tokens=", kLost, "each image has a caption file"},
    // Variables of the environment.
    {kVariable, "SDSCRIPTS_TORCH_COMPILE_ACTIVATION_MEMORY_BUDGET", kRenamed,
     "activation_memory_budget"},
    {kVariable, "SDSCRIPTS_*", kIdle, kFused},
    {kVariable, "DIFFSYNTH_SKIP_DOWNLOAD", kIdle, "nothing is ever downloaded"},
    {kVariable, "DIFFSYNTH_ATTENTION_IMPLEMENTATION", kIdle, "--attention forces one"},
    {kVariable, "DIFFSYNTH_DISK_MAP_BUFFER_SIZE", kIdle, "files are read once, piece by piece"},
    {kVariable, "DIFFSYNTH_MODEL_BASE_PATH DIFFSYNTH_DOWNLOAD_SOURCE", kRead},
    {kVariable, "DIFFSYNTH_* TOKENIZERS_PARALLELISM", kIdle, "the program does not read it"},
    {kVariable, "WANDB_* SWANLAB_*", kIdle, kNoLog},
};

// A value of another program, of a flag that is called the same here.
struct ValueRow {
  std::string_view flag;
  std::string_view value;  // empty: any that is not taken
  std::string_view use;
};

constexpr ValueRow kValues[] = {
    {"lr_warmup_steps", "", "steps are meant, not a part of the run: 0.05 of 1000 steps is 50"},
    {"weighting_scheme", "logit_normal",
     "noise levels are drawn so by --timestep_sampling logit_normal, with --weighting_scheme none"},
    {"weighting_scheme", "mode",
     "noise levels are drawn so by --timestep_sampling mode, with --weighting_scheme none"},
};

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    words.push_back(text.substr(0, text.find(' ')));
    text.remove_prefix(std::min(text.size(), words.back().size() + 1));
  }
  return words;
}

// The table, a name at a time.
const std::vector<CompatFlag>& all_flags() {
  static const std::vector<CompatFlag> flags = [] {
    std::vector<CompatFlag> all;
    for (const CompatRow& row : kRows) {
      for (std::string_view name : words_of(row.names)) {
        const bool has_value = name.ends_with('=');
        if (has_value) name.remove_suffix(1);
        all.push_back({row, name, has_value});
      }
    }
    return all;
  }();
  return flags;
}

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
      return "use --" + flag.name_here();
    case kLaunch:
      return "atelier launch --" + flag.name_here() + " says it";
    case kFixed:
      return "use --" + text;
    case kIdle:
    case kQuiet:
    case kLost:
      return text + ": leave it out";
    case kModel:
    case kRead:
      break;
  }
  return text;
}

// Why a flag of kStudio does nothing, and what does it here.
std::string reason_of(const CompatFlag& flag) {
  return std::string(flag.text) + (flag.use.empty() ? "" : "; use --" + std::string(flag.use));
}

FlagSpec spec_of(const CompatFlag& flag) {
  return {.name = std::string(flag.name),
          .kind = flag.has_value ? FlagKind::kText : FlagKind::kFlag,
          .help = (flag.fate == kLost ? "refused: " : "no effect: ") + reason_of(flag),
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

std::pair<std::string, std::string> CompatFlag::fixed() const {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos) return {std::string(text), "true"};
  return {std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

bool CompatFlag::is_harmless(std::string_view value) const {
  return std::ranges::count(words_of(harmless), value) != 0;
}

const CompatFlag* find_compat_flag(std::string_view name, unsigned origins) {
  const auto it = std::ranges::find_if(all_flags(), [&](const CompatFlag& flag) {
    if ((flag.origins & origins) == 0) return false;
    return flag.name.ends_with('*') ? name.starts_with(flag.name.substr(0, flag.name.size() - 1))
                                    : flag.name == name;
  });
  return it == all_flags().end() ? nullptr : &*it;
}

std::vector<OtherFlag> compat_answers(unsigned origins) {
  std::vector<OtherFlag> answers;
  for (const CompatFlag& flag : all_flags()) {
    if (const unsigned asked = flag.origins & origins; asked != 0)
      answers.push_back({flag.name, flag.has_value, hint_of(flag), program_of(asked)});
  }
  return answers;
}

std::string_view use_of_value(std::string_view flag, std::string_view value) {
  const auto row = std::ranges::find_if(kValues, [&](const ValueRow& known) {
    return known.flag == flag && (known.value.empty() || known.value == value);
  });
  return row == std::end(kValues) ? "" : row->use;
}

FlagSpec compat_spec(std::string_view name) {
  return spec_of(*find_compat_flag(name, kStudio));
}

std::vector<FlagSpec> compat_specs() {
  std::vector<FlagSpec> specs;
  for (const CompatFlag& flag : all_flags()) {
    if (flag.origins == kStudio && !has_own_place(flag.name)) specs.push_back(spec_of(flag));
  }
  return specs;
}

std::vector<std::string> note_compat_flags(const ParsedFlags& flags, report::Problems& problems) {
  std::vector<std::string> notes;
  for (const CompatFlag& flag : all_flags()) {
    if (flag.origins != kStudio || !is_wanted(flags, flag.name)) continue;
    const std::string place = flags.place(flag.name);
    if (flag.fate == kLost) {
      problems.add(place + ": " + std::string(flag.text),
                   flag.use.empty() ? "leave it out" : "use --" + std::string(flag.use));
    } else {
      notes.push_back(place + " has no effect: " + reason_of(flag));
    }
  }
  return notes;
}

std::vector<std::string> note_compat_variables() {
  std::vector<std::string> notes;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("SDSCRIPTS_") && !name.starts_with("DIFFSYNTH_")) continue;
    const CompatFlag* known = find_compat_flag(name, kVariable);
    if (known->fate == kRead) continue;
    notes.push_back(name + " has no effect: " +
                    (known->fate == kIdle ? std::string(known->text) : hint_of(*known)));
  }
  std::sort(notes.begin(), notes.end());
  return notes;
}

}  // namespace atelier::flags
