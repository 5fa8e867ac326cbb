// The flags of atelier train and atelier cache.

#include "host/flags/compat_flags.h"
#include "host/model/model_flags.h"
#include "host/order/training.h"
#include "host/order/training_checks.h"

namespace atelier::order {
namespace {

using samples::TimestepOptions;
using samples::TimestepSampling;
using samples::Weighting;

using flags::at_least;
using flags::between;
using flags::FlagKind;
using flags::FlagSpec;
using flags::ParsedFlags;
using flags::Table;

// So that steps can be counted.
constexpr double kMostInt = 2'147'483'647, kMostUnsigned = 4'294'967'295, kMostRanks = 1024;

// Names of the family behind a help text: " (dit, vae)".
std::string among(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? " (" : ", ") + name;
  return out.empty() ? out : out + ")";
}

std::string components_of(const ModelFamily* family) {
  return family ? among(trainable_components(*family)) : "";
}

std::string optional_inputs_of(const ModelFamily* family) {
  std::vector<std::string> names;
  if (family) {
    for (const InputSpec& input : family->inputs()) {
      const bool is_optional = !input.required || input.required_by != "*";
      if (input.use != InputUse::kGenerate && is_optional) names.emplace_back(input.name);
    }
  }
  return among(names);
}

void add_run(Table& table, Training& c) {
  table.group("Run")
      .add(
          {.name = "task",
           .help = "what is learnt; :data_process only fills the cache, :train only trains from it",
           .preset = "sft",
           .choices = {"sft", "sft:data_process", "sft:train", "direct_distill",
                       "direct_distill:data_process", "direct_distill:train"}})
      .add({.name = "config",
            .help = "TOML file with these names; the command line wins",
            .value_name = "FILE"})
      .add({.name = "resume",
            .help = "goes on from a run's folder or from one checkpoint; latest: of output_path, "
                    "or from the beginning when there is none",
            .value_name = "FOLDER|latest"})
      .seed("seed", c.seed, "of order, noise, timesteps and dropout", at_least(0))
      .number("num_epochs", c.num_epochs, "epochs", between(1, kMostInt))
      .number("max_train_steps", c.max_train_steps,
              "optimizer steps after which the run ends, in place of num_epochs", at_least(1))
      .number("batch_size", c.order.batch_size, "samples of one batch", between(1, kMostInt))
      .number("gradient_accumulation_steps", c.order.gradient_accumulation_steps,
              "batches of one optimizer step, of each process", between(1, kMostInt))
      .number("global_batch_size", c.global_batch_size,
              "samples of one optimizer step of all processes, in place of "
              "gradient_accumulation_steps; 0: batch_size times that of each process, and with "
              "sequence_parallel P of each P processes",
              between(0, kMostInt));
}

void add_distributed(Table& table, Training& c) {
  table.group("Several processes")
      .choice("zero_stage", c.shards.stage, {{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}},
              "what processes share out: 0: nothing (DDP); 1: the optimizer's state; 2: gradients, "
              "too; 3: the blocks of denoisers and controls, too, trained or below a LoRA")
      .text("zero_group", c.shards.group,
            "processes that share it out among them: all, node (those of one machine), or so many; "
            "several such groups exchange sums",
            "all|node|N")
      .choice("dist_backend", c.dist_backend,
              {{"auto", "auto"}, {"nccl", "nccl"}, {"gloo", "gloo"}},
              "what sends tensors of GPUs: nccl, or gloo through host memory; auto: nccl")
      .number("sequence_parallel", c.sequence_parallel,
              "processes that compute each batch together, with a part of the denoiser's rows each",
              between(1, kMostRanks))
      .number(
          "dist_timeout", c.dist_timeout,
          "seconds that one exchange between processes may take before the run ends; 0: as long "
          "as 20 steps, and a minute at least",
          between(0, 86'400));
}

// Optional texts and switches that the family is trained with: what rows have that give none.
void add_values(Table& table, data::DatasetOptions& d, const ModelFamily* family) {
  if (family == nullptr) return;
  for (const InputSpec& input : family->inputs()) {
    const bool is_switch = input.kind == InputKind::kFlag;
    if (input.use == InputUse::kGenerate || input.required) continue;
    if (input.kind != InputKind::kText && !is_switch) continue;
    const std::string name(input.name);
    table.add({.name = name,
               .kind = is_switch ? FlagKind::kFlag : FlagKind::kText,
               .help = "of rows that have no such column: " + std::string(input.help),
               .choices = {input.choices.begin(), input.choices.end()}},
              [&d, name](const ParsedFlags& flags) {
                if (const auto text = flags.find_text(name)) d.texts_of_all.emplace(name, *text);
              });
  }
}

void add_dataset(Table& table, Training& c, const ModelFamily* family) {
  data::DatasetOptions& d = c.dataset;
  table.group("Dataset")
      .text("dataset_base_path", d.dataset_base_path,
            "folder that the metadata's paths are relative to; with :train also a cache", "FOLDER")
      .text("dataset_metadata_path", d.dataset_metadata_path,
            "csv, json or jsonl; without it captions stand in text files beside the images", "FILE")
      .text("control_path", d.control_path,
            "folder of images beside the ones to learn, called as these are: a.png of a.png, or "
            "a_0.png and a_1.png; they are the input of extra_inputs, or the family's only one",
            "FOLDER")
      .number("dataset_repeat", c.order.dataset_repeat, "how often an epoch has each row",
              between(1, kMostUnsigned))
      .number("dataset_num_workers", c.dataset_num_workers,
              "threads that decode ahead; results do not depend on it", between(0, 256))
      .list("data_file_keys", d.data_file_keys, "columns with file paths")
      .list("extra_inputs", d.extra_inputs,
            "optional inputs that every row must have" + optional_inputs_of(family))
      .text("caption_extension", d.caption_extension, "of captions beside images")
      .number("caption_dropout_rate", c.caption_dropout_rate,
              "part of the samples that are learnt with an empty prompt", flags::kPart)
      .flag("truncate_captions", c.model.cuts_texts,
            "texts of too many tokens are cut, as published pipelines do, and not refused")
      .text("mask_column", d.mask_column, "column with images that say where the loss counts")
      .flag("alpha_mask", d.alpha_mask, "the images' own transparency says where the loss counts")
      .choice("validate", d.decode_all, {{"headers", false}, {"full", true}},
              "full: every file is decoded beforehand")
      .text("cache_path", c.cache_path, "folder of encoded samples; OUTPUT_PATH/cache when empty",
            "FOLDER");
  add_values(table, d, family);
}

void add_size(Table& table, data::DatasetOptions& d) {
  table.group("Size")
      .number("height", d.height, "of all images, in pixels; without it each keeps its shape",
              at_least(1))
      .number("width", d.width, "of all images, in pixels", at_least(1))
      .number("max_pixels", d.max_pixels, "area to which larger images are scaled down",
              at_least(1))
      .flag("enable_bucket", d.enable_bucket, "images are cut to one of a few shapes")
      .number("bucket_reso_steps", d.bucket_reso_steps,
              "sides of buckets are multiples of it, in pixels", at_least(1))
      .number("min_bucket_reso", d.min_bucket_reso, "shortest side of a bucket, in pixels",
              at_least(1))
      .number("max_bucket_reso", d.max_bucket_reso, "longest side of a bucket, in pixels",
              at_least(1))
      .flag("bucket_no_upscale", d.bucket_no_upscale, "small images get a smaller bucket");
}

void add_clips(Table& table, data::ClipOptions& clips) {
  using enum data::FrameExtraction;
  const auto named = [](data::FrameExtraction extraction) {
    return std::pair(data::extraction_name(extraction), extraction);
  };
  table.group("Clips")
      .integers("num_frames", clips.num_frames,
                "of each piece that is learnt, one number or several: each clip then gives pieces "
                "of every length that it has; without it as many as the model makes; images have 1",
                at_least(1))
      .choice("frame_extraction", clips.frame_extraction,
              {named(kHead), named(kChunk), named(kSlide), named(kUniform), named(kRandom)},
              "head: a clip's beginning; chunk: pieces one behind the other; slide: one every "
              "frame_stride frames; uniform: frame_sample of them, evenly spread; random: one of "
              "frame_sample, which are spread at random")
      .number("frame_stride", clips.frame_stride, "frames between the beginnings of slide's pieces",
              at_least(1))
      .number("frame_sample", clips.frame_sample, "pieces of uniform and of random", at_least(1))
      .flag("keep_frame_rate", clips.keep_frame_rate,
            "every frame is taken once; without it those that are seen at the model's rate")
      .number(
          "source_fps", clips.source_fps,
          "frames a second of all clips, whatever their files say; folders of frames say nothing",
          flags::kPositive);
}

void add_training(Table& table, Training& c, const ModelFamily* family) {
  LoraSettings& lora = c.lora;
  table.group("What is trained")
      .list("trainable_models", c.trainable_models,
            "components, or parts of them behind a dot, whose own weights are trained" +
                components_of(family))
      .list("lora_base_model", lora.base_models,
            "component that gets a LoRA, or several, each saved as a file" + components_of(family))
      .list("lora_target_modules", lora.target_modules,
            "layers that get one, by name or by the end of their path; empty: the family's choice")
      .number("lora_rank", lora.rank, "rank", at_least(1))
      .number("lora_alpha", lora.alpha, "the factor is alpha / rank; the rank when not given",
              flags::kPositive)
      .number("lora_dropout", lora.dropout, "of a LoRA's input", flags::kPartBelowOne)
      .flag("use_rslora", lora.use_rslora, "the factor is alpha / sqrt(rank)")
      .number("loraplus_lr_ratio", lora.loraplus_lr_ratio,
              "learning rate of B over that of A (LoRA+)", flags::kPositive)
      .text("lora_checkpoint", lora.checkpoint, "LoRA file whose values training begins with",
            "FILE")
      .text("preset_lora_path", lora.preset_path,
            "LoRA that is part of the frozen model (differential LoRA)", "FILE")
      .text("preset_lora_model", lora.preset_model,
            "component of preset_lora_path" + components_of(family))
      .add({.name = "lora_format",
            .help = "spelling of saved LoRA files",
            .preset = "diffusers",
            .choices = lora::format_names()},
           [&lora](const ParsedFlags& flags) {
             lora.format = lora::parse_format(flags.text("lora_format"));
           })
      .text("resume_from_checkpoint", c.resume_from_checkpoint,
            "file of weights that the one trained component begins with", "FILE");
}

void add_optimizer(Table& table, Training& c) {
  optim::Options& o = c.optimizer;
  table.group("Optimizer")
      .number("learning_rate", c.learning_rate, "1e-4 suits LoRA, 1e-5 full training, 1 Prodigy",
              flags::kPositive)
      .choice("optimizer_type", o.kind,
              {{"AdamW", optim::Kind::kAdamW},
               {"AdamW8bit", optim::Kind::kAdamW8bit},
               {"Adafactor", optim::Kind::kAdafactor},
               {"Prodigy", optim::Kind::kProdigy}},
              "optimizer")
      .add({.name = "optimizer_args",
            .kind = FlagKind::kList,
            .help = "settings of Adafactor and Prodigy: d_coef=1,scale_parameter=true",
            .preset = ""})
      .number("weight_decay", c.weight_decay, "decoupled, as AdamW's", flags::kNotNegative)
      .number("adam_beta1", o.beta1, "decay of the first moment", flags::kPartBelowOne)
      .number("adam_beta2", o.beta2, "decay of the second moment", flags::kPartBelowOne)
      .number("adam_epsilon", o.eps, "is added to the root of the second moment", flags::kPositive)
      .number("max_grad_norm", c.max_grad_norm, "gradients above it are scaled down; 0: never",
              flags::kNotNegative)
      .choice("master_weights", o.master_weights,
              {{"fp32", optim::MasterWeights::kFp32},
               {"stochastic", optim::MasterWeights::kStochastic}},
              "16-bit weights are moved in a float32 copy, or by rounding at random")
      .number("max_skipped_steps", c.max_skipped_steps,
              "steps in a row without finite gradients after which the run gives up", at_least(1))
      .number("ema_decay", c.ema_decay, "of a running average of the weights on the CPU; 0: none",
              flags::kPartBelowOne)
      .word("lr_scheduler", c.lr_schedule.kind,
            {"constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts",
             "polynomial"},
            "how the learning rate changes over the run")
      .number("lr_warmup_steps", c.lr_schedule.warmup_steps,
              "optimizer steps in which the rate rises from 0", at_least(0))
      .number("lr_scheduler_num_cycles", c.lr_schedule.num_cycles, "of cosine_with_restarts",
              flags::kPositive)
      .number("lr_scheduler_power", c.lr_schedule.power, "of polynomial", flags::kPositive);
}

void add_timesteps(Table& table, TimestepOptions& t) {
  table.group("Noise levels and loss")
      .choice("timestep_sampling", t.sampling,
              {{"uniform", TimestepSampling::kUniform},
               {"logit_normal", TimestepSampling::kLogitNormal},
               {"sigmoid", TimestepSampling::kSigmoid},
               {"shift", TimestepSampling::kShift},
               {"mode", TimestepSampling::kMode},
               {"uniform_dynamic_shift", TimestepSampling::kUniformDynamicShift},
               {"sigmoid_dynamic_shift", TimestepSampling::kSigmoidDynamicShift}},
              "how noise levels are drawn; uniform: from the family's table of 1000; dynamic "
              "shifts follow the image's size")
      .choice("weighting_scheme", t.weighting,
              {{"bsmntw", Weighting::kBsmntw},
               {"none", Weighting::kNone},
               {"sigma_sqrt", Weighting::kSigmaSqrt},
               {"cosmap", Weighting::kCosmap}},
              "weight of the loss by noise level")
      .number("logit_mean", t.logit_mean, "of logit_normal")
      .number("logit_std", t.logit_std, "of logit_normal", flags::kPositive)
      .number("mode_scale", t.mode_scale, "of mode")
      .number("sigmoid_scale", t.sigmoid_scale, "of sigmoid, shift and sigmoid_dynamic_shift",
              flags::kPositive)
      .number("discrete_flow_shift", t.discrete_flow_shift, "of shift", flags::kPositive)
      .number("min_timestep_boundary", t.min_timestep_boundary,
              "where the part of the table begins that is drawn from; 0: pure noise", flags::kPart)
      .number("max_timestep_boundary", t.max_timestep_boundary, "where it ends; 1: no noise",
              flags::kPart);
}

void add_output(Table& table, OutputSettings& o, LogSettings& l) {
  table.group("Output")
      .text("output_path", o.output_path, "folder of the run, and of no other", "FOLDER")
      .number("save_steps", o.save_steps,
              "optimizer steps between two saves; without it each epoch", at_least(1))
      .word("save_dtype", o.save_dtype, weights::dtype_choices(),
            "of saved weights; auto: float32 for LoRA, else the model's")
      .flag("save_state", o.save_state, "checkpoints to resume from, beside the weights")
      .number("checkpoints_total_limit", o.checkpoints_total_limit, "checkpoints that stay; 0: all",
              at_least(0))
      .number("weights_total_limit", o.weights_total_limit,
              "step-N and epoch-N files that stay; 0: all", at_least(0))
      .flag("enable_tensorboard_log", l.tensorboard, "event files in the run's folder")
      .flag("enable_csv_log", l.csv, "loss.csv in the run's folder: step,key,value")
      .number("logging_steps", l.logging_steps, "optimizer steps between two entries", at_least(1))
      .flag("quiet", l.quiet, "no progress on stderr");
}

void add_watching(Table& table, PreviewSettings& previews, ValidationSettings& validation) {
  table.group("Samples and validation")
      .text("sample_prompts", previews.prompts_file,
            "file with a prompt a line: images made while training", "FILE")
      .number("sample_every_n_steps", previews.every_n_steps,
              "optimizer steps between two sets of images", at_least(1))
      .number("sample_every_n_epochs", previews.every_n_epochs, "epochs between two sets of images",
              at_least(1))
      .flag("sample_at_first", previews.at_first, "a set before the first step")
      .text("validation_dataset_base_path", validation.base_path,
            "as dataset_base_path, of samples that are not learnt", "FOLDER")
      .text("validation_dataset_metadata_path", validation.metadata_path,
            "as dataset_metadata_path", "FILE")
      .text("validation_control_path", validation.control_path, "as control_path", "FOLDER")
      .number("validation_steps", validation.steps, "optimizer steps between two validations",
              at_least(1))
      .number("validation_timesteps", validation.timesteps, "noise levels of the fixed grid",
              between(1, 1000));
}

void add_memory(Table& table, Training& c) {
  MemorySettings& memory = c.memory;
  OffloadSettings& offload = c.offload;
  table.group("Memory")
      .add({.name = "activation_memory_budget",
            .help =
                "what activations may take: auto, none, full, a part from 0 to 1, or a size: 12GiB",
            .preset = ""})
      .flag("use_gradient_checkpointing", c.use_gradient_checkpointing,
            "blocks are computed again in the backward pass")
      .flag("use_gradient_checkpointing_offload", c.offloads_activations,
            "the same, and what blocks hand on waits in host memory; with "
            "activation_memory_budget, outputs that it chooses wait there");
  model::add_memory_flags(table, memory.limits);
  table
      .text("report_memory", memory.report,
            "ends in .csv or .svg, or in neither for both: what the device and the host hold over "
            "time, block by block in the first 8 steps",
            "FILE")
      .add(flags::compat_spec("offload_models"))
      .flag("cpu_offload", offload.weights,
            "blocks rest in host memory and come to the device when they run; trained weights "
            "stay on it")
      .also("enable_model_cpu_offload", offload.weights, "the same as cpu_offload")
      .flag("optimize_on_cpu", offload.optimizer,
            "trained weights, too, rest in host memory, and the optimizer works there")
      .also("enable_optimizer_cpu_offload", offload.optimizer, "the same as optimize_on_cpu")
      .add({.name = "param_size_threshold",
            .kind = FlagKind::kInteger,
            .help = "MiB: of the weights that are trained on the CPU, smaller ones stay on the "
                    "device"})
      .add({.name = "cpu_offload_split_threshold",
            .kind = FlagKind::kInteger,
            .help = "the same as param_size_threshold"})
      .add(flags::compat_spec("initialize_model_on_cpu"));
}

}  // namespace

flags::Table config_table(Training& config, const ModelFamily* family, std::string_view command) {
  Table table;
  add_run(table, config);
  if (command == "cache")
    table.flag("dry_run", config.dry_run, "checks everything and encodes nothing");
  table.group("Model").add(model::model_flags());
  add_dataset(table, config, family);
  add_size(table, config.dataset);
  add_clips(table, config.dataset.clips);
  add_training(table, config, family);
  add_optimizer(table, config);
  add_timesteps(table, config.timesteps);
  add_output(table, config.output, config.log);
  add_watching(table, config.previews, config.validation);
  add_memory(table, config);
  add_distributed(table, config);
  add_process_flags(table.group("Process"), config.process);
  table.group("Read for command lines of DiffSynth-Studio").add(flags::compat_specs());
  return table;
}

flags::CommandSpec train_command(const ModelFamily* family, std::string name) {
  Training presets;
  flags::CommandSpec command;
  command.summary = name == "cache" ? "Checks a dataset and encodes it for training."
                                    : "Trains LoRAs and whole components.";
  command.flags = config_table(presets, family, name).specs();
  command.others = flags::compat_answers(flags::kKohya | flags::kLauncher | flags::kTrainer);
  command.lacks_family = family == nullptr;
  command.name = std::move(name);
  return command;
}

}  // namespace atelier::order
