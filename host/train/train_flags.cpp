// The flags of atelier train and atelier cache.
#include <charconv>

#include "host/model/model_flags.h"
#include "host/train/config.h"
#include "host/train/foreign_flags.h"

namespace atelier::train {
namespace {

using flags::FlagKind;
using flags::FlagSpec;

std::string shortest(double value) {
  char buffer[32];
  const auto [end, failure] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, end};
}

// Collects flags group by group. Presets are those of a Config that nobody has touched.
class Table {
 public:
  explicit Table(std::vector<FlagSpec>& flags) : flags_(flags) {}

  Table& group(std::string name) {
    group_ = std::move(name);
    return *this;
  }
  Table& text(std::string name, std::optional<std::string> preset, std::string help) {
    return add({.name = name, .help = help, .preset = preset});
  }
  // `value_name` as in FlagSpec: "FILE", "FOLDER".
  Table& path(std::string name, std::optional<std::string> preset, std::string value_name,
              std::string help) {
    return add({.name = name, .help = help, .preset = preset, .value_name = value_name});
  }
  Table& list(std::string name, std::optional<std::string> preset, std::string help) {
    return add({.name = name, .kind = FlagKind::kList, .help = help, .preset = preset});
  }
  Table& choice(std::string name, std::string preset, std::vector<std::string> choices,
                std::string help) {
    return add({.name = name, .help = help, .preset = preset, .choices = choices});
  }
  Table& flag(std::string name, bool preset, std::string help) {
    return add(
        {.name = name, .kind = FlagKind::kFlag, .help = help, .preset = preset ? "true" : "false"});
  }
  Table& integer(std::string name, std::optional<int64_t> preset, std::string help) {
    FlagSpec spec = {.name = name, .kind = FlagKind::kInteger, .help = help};
    if (preset) spec.preset = std::to_string(*preset);
    return add(std::move(spec));
  }
  Table& real(std::string name, std::optional<double> preset, std::string help) {
    FlagSpec spec = {.name = name, .kind = FlagKind::kReal, .help = help};
    if (preset) spec.preset = shortest(*preset);
    return add(std::move(spec));
  }
  Table& add(FlagSpec spec) {
    spec.group = group_;
    flags_.push_back(std::move(spec));
    return *this;
  }

 private:
  std::vector<FlagSpec>& flags_;
  std::string group_;
};

constexpr std::nullopt_t kNone = std::nullopt;

// Names of the family behind a help text: " (dit, vae)".
std::string among(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? " (" : ", ") + name;
  return out.empty() ? out : out + ")";
}

std::string components_of(const ModelFamily* family) {
  std::vector<std::string> names;
  if (family) {
    for (const ComponentSpec& component : family->components()) {
      if (component.role != Role::kTokenizer) names.emplace_back(component.name);
    }
  }
  return among(names);
}

std::string optional_inputs_of(const ModelFamily* family) {
  std::vector<std::string> names;
  if (family) {
    for (const InputSpec& input : family->inputs()) {
      if (input.use != InputUse::kGenerate && !input.required) names.emplace_back(input.name);
    }
  }
  return among(names);
}

void add_run(Table& table, const Config& c) {
  table.group("Run")
      .choice("task", "sft",
              {"sft", "sft:data_process", "sft:train", "direct_distill",
               "direct_distill:data_process", "direct_distill:train"},
              "what is learnt; :data_process only fills the cache, :train only trains from it")
      .path("config", kNone, "FILE", "TOML file with these names; the command line wins")
      .path("resume", kNone, "FOLDER|latest",
            "goes on from a run's folder or from one checkpoint; latest: of output_path, or from "
            "the beginning when there is none")
      .add({.name = "seed",
            .kind = FlagKind::kSeed,
            .help = "of order, noise, timesteps and dropout",
            .preset = std::to_string(c.seed)})
      .integer("num_epochs", c.num_epochs, "epochs")
      .integer("max_train_steps", kNone,
               "optimizer steps after which the run ends, in place of num_epochs")
      .integer("batch_size", c.order.batch_size, "samples of one batch")
      .integer("gradient_accumulation_steps", c.order.gradient_accumulation_steps,
               "batches of one optimizer step");
}

void add_model(Table& table, std::vector<FlagSpec> model_flags) {
  table.group("Model");
  for (FlagSpec& flag : model_flags) table.add(std::move(flag));
}

void add_dataset(Table& table, const Config& c, const ModelFamily* family) {
  const data::DatasetOptions& d = c.dataset;
  table.group("Dataset")
      .path("dataset_base_path", "", "FOLDER",
            "folder that the metadata's paths are relative to; with :train also a cache")
      .path("dataset_metadata_path", "", "FILE",
            "csv, json or jsonl; without it captions stand in text files beside the pictures")
      .integer("dataset_repeat", c.order.dataset_repeat, "how often an epoch has each row")
      .integer("dataset_num_workers", c.dataset_num_workers,
               "threads that decode ahead; results do not depend on it")
      .list("data_file_keys", "image,video", "columns with file paths")
      .list("extra_inputs", "",
            "optional inputs that every row must have" + optional_inputs_of(family))
      .text("caption_extension", d.caption_extension, "of captions beside pictures")
      .real("caption_dropout_rate", c.caption_dropout_rate,
            "part of the samples that are learnt with an empty prompt")
      .flag("truncate_captions", c.model.cuts_texts,
            "texts of too many tokens are cut, as published pipelines do, and not refused")
      .text("mask_column", d.mask_column, "column with pictures that say where the loss counts")
      .flag("alpha_mask", d.alpha_mask, "the pictures' own transparency says where the loss counts")
      .choice("validate", "headers", {"headers", "full"}, "full: every file is decoded beforehand")
      .path("cache_path", "", "FOLDER", "folder of encoded samples; OUTPUT_PATH/cache when empty");
}

void add_size(Table& table, const data::DatasetOptions& d) {
  table.group("Size")
      .integer("height", kNone, "of all pictures, in pixels; without it each keeps its shape")
      .integer("width", kNone, "of all pictures, in pixels")
      .integer("max_pixels", d.max_pixels, "area to which larger pictures are scaled down")
      .integer("num_frames", kNone, "of videos; pictures have 1")
      .flag("enable_bucket", d.enable_bucket, "pictures are cut to one of a few shapes")
      .integer("bucket_reso_steps", d.bucket_reso_steps,
               "sides of buckets are multiples of it, in pixels")
      .integer("min_bucket_reso", d.min_bucket_reso, "shortest side of a bucket, in pixels")
      .integer("max_bucket_reso", d.max_bucket_reso, "longest side of a bucket, in pixels")
      .flag("bucket_no_upscale", d.bucket_no_upscale, "small pictures get a smaller bucket");
}

void add_training(Table& table, const Config& c, const ModelFamily* family) {
  table.group("What is trained")
      .list("trainable_models", "",
            "components, or parts of them behind a dot, whose own weights are trained" +
                components_of(family))
      .list("lora_base_model", "",
            "component that gets a LoRA, or several, each saved as a file" + components_of(family))
      .list("lora_target_modules", "",
            "layers that get one, by name or by the end of their path; empty: the family's choice")
      .integer("lora_rank", c.lora.rank, "rank")
      .real("lora_alpha", kNone, "the factor is alpha / rank; the rank when not given")
      .real("lora_dropout", c.lora.dropout, "of a LoRA's input")
      .flag("use_rslora", c.lora.use_rslora, "the factor is alpha / sqrt(rank)")
      .real("loraplus_lr_ratio", c.lora.loraplus_lr_ratio,
            "learning rate of B over that of A (LoRA+)")
      .path("lora_checkpoint", "", "FILE", "LoRA file whose values training begins with")
      .path("preset_lora_path", "", "FILE",
            "LoRA that is part of the frozen model (differential LoRA)")
      .text("preset_lora_model", "", "component of preset_lora_path" + components_of(family))
      .choice("lora_format", "diffusers", lora::format_names(), "spelling of saved LoRA files")
      .path("resume_from_checkpoint", "", "FILE",
            "file of weights that the one trained component begins with");
}

void add_optimizer(Table& table, const Config& c) {
  table.group("Optimizer")
      .real("learning_rate", c.learning_rate, "1e-4 suits LoRA, 1e-5 full training, 1 Prodigy")
      .choice("optimizer_type", "AdamW", {"AdamW", "AdamW8bit", "Adafactor", "Prodigy"},
              "optimizer")
      .list("optimizer_args", "",
            "settings of Adafactor and Prodigy: d_coef=1,scale_parameter=true")
      .real("weight_decay", c.weight_decay, "decoupled, as AdamW's")
      .real("adam_beta1", c.optimizer.beta1, "decay of the first moment")
      .real("adam_beta2", c.optimizer.beta2, "decay of the second moment")
      .real("adam_epsilon", c.optimizer.eps, "is added to the root of the second moment")
      .real("max_grad_norm", c.max_grad_norm, "gradients above it are scaled down; 0: never")
      .choice("master_weights", "fp32", {"fp32", "stochastic"},
              "16-bit weights are moved in a float32 copy, or by rounding at random")
      .integer("max_skipped_steps", c.max_skipped_steps,
               "steps in a row without finite gradients after which the run gives up")
      .real("ema_decay", c.ema_decay, "of a running average of the weights on the CPU; 0: none")
      .choice("lr_scheduler", c.lr_schedule.kind,
              {"constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts",
               "polynomial"},
              "how the learning rate changes over the run")
      .integer("lr_warmup_steps", c.lr_schedule.warmup_steps,
               "optimizer steps in which the rate rises from 0")
      .real("lr_scheduler_num_cycles", c.lr_schedule.num_cycles, "of cosine_with_restarts")
      .real("lr_scheduler_power", c.lr_schedule.power, "of polynomial");
}

void add_timesteps(Table& table, const TimestepOptions& t) {
  table.group("Noise levels and loss")
      .choice(
          "timestep_sampling", "uniform",
          {"uniform", "logit_normal", "sigmoid", "shift", "mode", "uniform_dynamic_shift",
           "sigmoid_dynamic_shift"},
          "how noise levels are drawn; uniform: from the family's table of 1000; dynamic shifts "
          "follow the picture's size")
      .choice("weighting_scheme", "bsmntw", {"bsmntw", "none", "sigma_sqrt", "cosmap"},
              "weight of the loss by noise level")
      .real("logit_mean", t.logit_mean, "of logit_normal")
      .real("logit_std", t.logit_std, "of logit_normal")
      .real("mode_scale", t.mode_scale, "of mode")
      .real("sigmoid_scale", t.sigmoid_scale, "of sigmoid, shift and sigmoid_dynamic_shift")
      .real("discrete_flow_shift", t.discrete_flow_shift, "of shift")
      .real("min_timestep_boundary", t.min_timestep_boundary,
            "where the part of the table begins that is drawn from; 0: pure noise")
      .real("max_timestep_boundary", t.max_timestep_boundary, "where it ends; 1: no noise");
}

void add_output(Table& table, const OutputSettings& o, const LogSettings& l) {
  table.group("Output")
      .path("output_path", o.output_path, "FOLDER", "folder of the run, and of no other")
      .integer("save_steps", kNone, "optimizer steps between two saves; without it each epoch")
      .choice("save_dtype", o.save_dtype, weights::dtype_choices(),
              "of saved weights; auto: float32 for LoRA, else the model's")
      .flag("save_state", o.save_state, "checkpoints to resume from, beside the weights")
      .integer("checkpoints_total_limit", o.checkpoints_total_limit,
               "checkpoints that stay; 0: all")
      .integer("weights_total_limit", o.weights_total_limit,
               "step-N and epoch-N files that stay; 0: all")
      .flag("enable_tensorboard_log", l.tensorboard, "event files in the run's folder")
      .flag("enable_csv_log", l.csv, "loss.csv in the run's folder: step,key,value")
      .integer("logging_steps", l.logging_steps, "optimizer steps between two entries")
      .flag("quiet", l.quiet, "no progress on stderr");
}

void add_watching(Table& table, const Config& c) {
  table.group("Samples and validation")
      .path("sample_prompts", "", "FILE", "file with a prompt a line: pictures made while training")
      .integer("sample_every_n_steps", kNone, "optimizer steps between two sets of pictures")
      .integer("sample_every_n_epochs", kNone, "epochs between two sets of pictures")
      .flag("sample_at_first", c.samples.at_first, "a set before the first step")
      .path("validation_dataset_base_path", "", "FOLDER",
            "as dataset_base_path, of samples that are not learnt")
      .path("validation_dataset_metadata_path", "", "FILE", "as dataset_metadata_path")
      .integer("validation_steps", c.validation.steps, "optimizer steps between two validations")
      .integer("validation_timesteps", c.validation.timesteps, "noise levels of the fixed grid");
}

void add_memory(Table& table, const Config& c) {
  table.group("Memory")
      .text("activation_memory_budget", "",
            "what activations may take: auto, none, full, a part from 0 to 1, or a size: 12GiB")
      .flag("use_gradient_checkpointing", c.use_gradient_checkpointing,
            "blocks are computed again in the backward pass")
      .flag("use_gradient_checkpointing_offload", false,
            "the same, and what blocks hand on waits in host memory; with "
            "activation_memory_budget, outputs that it chooses wait there")
      .text(
          "vram", c.memory.vram,
          "what the run may take of the device, 24GiB; auto: what a GPU has free; off: nothing is "
          "planned. What was not said otherwise is chosen so that it fits")
      .text("host_memory", c.memory.host_memory,
            "what it may take of the host for that; auto: what is free")
      .list("allow_storage", "",
            "8-bit storages that a plan may choose where that is faster: fp8, int8")
      .path("report_memory", "", "FILE",
            "ends in .csv or .svg, or in neither for both: what the device and the host hold over "
            "time, block by block in the first 8 steps")
      .text("offload_models", "", "no effect: what a stage does not need is not loaded anyway");
  const std::string offload =
      "blocks rest in host memory and come to the device when they run; trained weights stay on it";
  const std::string on_cpu =
      "trained weights, too, rest in host memory, and the optimizer works there";
  const std::string threshold =
      "MiB: of the weights that are trained on the CPU, smaller ones stay on the device";
  table.flag("cpu_offload", false, offload)
      .flag("enable_model_cpu_offload", false, "the same as cpu_offload")
      .flag("optimize_on_cpu", false, on_cpu)
      .flag("enable_optimizer_cpu_offload", false, "the same as optimize_on_cpu")
      .integer("param_size_threshold", kNone, threshold)
      .integer("cpu_offload_split_threshold", kNone, "the same as param_size_threshold");
  table.flag("initialize_model_on_cpu", false,
             "no effect: weights are read into the memory of --device");
}

void add_process(Table& table, const ProcessSettings& p) {
  table.group("Process")
      .choice("attention", p.attention, {"auto", "flash", "efficient", "cudnn", "math"},
              "forces one implementation of attention")
      .choice("kernels", p.kernels, {"auto", "composed"},
              "composed: plain LibTorch operators in place of fused ones")
      .integer("threads", p.threads, "of the CPU; 0: one for each core");
}

void add_foreign(Table& table) {
  table.group("Read for command lines of DiffSynth-Studio")
      .flag("find_unused_parameters", false, "no effect: unused parameters never are in the way")
      .text("remove_prefix_in_ckpt", "", "no effect: names in saved files have no such prefix")
      .text("customized_optimizer", "", "refused: use optimizer_type")
      .text("quant_options", "", "refused: use storage, which keeps weights in fp8 or int8")
      .text("template_model_id_or_path", "", "no effect")
      .flag("enable_lora_hot_loading", false, "no effect: LoRAs are always loaded so")
      .flag("enable_swanlab_log", false, "no effect: use enable_tensorboard_log")
      .text("swanlab_project", "", "no effect")
      .flag("enable_wandb_log", false, "no effect: use enable_tensorboard_log")
      .text("wandb_project", "", "no effect")
      .text("processor_path", "", "no effect: use tokenizer_path")
      .text("audio_processor_path", "", "no effect: no input is sound")
      .flag("zero_cond_t", false, "refused: models that need it are not there")
      .flag("framewise_decoding", false, "refused: videos are not there");
}

}  // namespace

std::vector<FlagSpec> text_flags(const ModelFamily* family) {
  std::vector<FlagSpec> flags;
  if (family == nullptr) return flags;
  for (const InputSpec& input : family->inputs()) {
    if (input.use == InputUse::kGenerate || input.kind != InputKind::kText || input.required)
      continue;
    flags.push_back({.name = std::string(input.name),
                     .help = "of rows that have no such column: " + std::string(input.help)});
  }
  return flags;
}

flags::CommandSpec train_command(const ModelFamily* family, std::string name) {
  const bool is_cache = name == "cache";
  flags::CommandSpec command{std::move(name), is_cache
                                                  ? "Checks a dataset and encodes it for training."
                                                  : "Trains LoRAs and whole components."};
  const Config config;
  Table table(command.flags);
  add_run(table, config);
  if (is_cache) table.flag("dry_run", false, "checks everything and encodes nothing");
  add_model(table, model::model_flags());
  add_dataset(table, config, family);
  for (FlagSpec& flag : text_flags(family)) table.add(std::move(flag));
  add_size(table, config.dataset);
  add_training(table, config, family);
  add_optimizer(table, config);
  add_timesteps(table, config.timesteps);
  add_output(table, config.output, config.log);
  add_watching(table, config);
  add_memory(table, config);
  add_process(table, config.process);
  add_foreign(table);
  command.others = other_train_flags();
  command.lacks_family = family == nullptr;
  return command;
}

}  // namespace atelier::train
