#include "host/train/foreign_flags.h"

#include <algorithm>
#include <iterator>

namespace atelier::train {
namespace {

using enum Fate;

constexpr std::string_view kOneProcess = "one process trains on one device";
constexpr std::string_view kPlanned =
    "--vram says what the run may take, and where weights and the optimizer rest is planned";

constexpr ForeignFlag kLauncherFlags[] = {
    {"config_file", true, kIdle, kPlanned},
    {"mixed_precision", true, kRead, "--dtype says what weights are kept and computed in"},
    {"num_processes", true, kRead, kOneProcess},
    {"nproc_per_node", true, kRead, kOneProcess},
    {"nproc-per-node", true, kRead, kOneProcess},
    {"num_gpus", true, kRead, kOneProcess},
    {"num_machines", true, kRead, kOneProcess},
    {"nnodes", true, kRead, kOneProcess},
    {"multi_gpu", false, kLost, kOneProcess},
    {"machine_rank", true, kIdle, kOneProcess},
    {"node_rank", true, kIdle, kOneProcess},
    {"main_process_ip", true, kIdle, kOneProcess},
    {"main_process_port", true, kIdle, kOneProcess},
    {"master_addr", true, kIdle, kOneProcess},
    {"master_port", true, kIdle, kOneProcess},
    {"rdzv_backend", true, kIdle, kOneProcess},
    {"rdzv_endpoint", true, kIdle, kOneProcess},
    {"standalone", false, kIdle, kOneProcess},
    {"gpu_ids", true, kRead, "--device cuda:N chooses a GPU"},
    {"use_deepspeed", false, kIdle, kPlanned},
    {"deepspeed_config_file", true, kIdle, kPlanned},
    {"zero_stage", true, kIdle, kPlanned},
    {"use_fsdp", false, kIdle, kPlanned},
    {"dynamo_backend", true, kIdle, "operators are fused as they are built"},
    {"dynamo_mode", true, kIdle, "operators are fused as they are built"},
    {"num_cpu_threads_per_process", true, kIdle, "--threads is one for each core"},
};

constexpr ForeignFlag kTrainerFlags[] = {
    {"lr", true, kRenamed, "learning_rate"},
    {"rank", true, kRenamed, "lora_rank"},
    {"steps", true, kRenamed, "max_train_steps"},
    {"num_train_epochs", true, kRenamed, "num_epochs"},
    {"checkpointing_steps", true, kRenamed, "save_steps"},
    {"instance_data_dir", true, kRenamed, "dataset_base_path"},
    {"use_bf16", false, kFixed, "--dtype bfloat16"},
    {"bf16", false, kFixed, "--dtype bfloat16"},
    {"use_activation_checkpointing", false, kFixed, "--use_gradient_checkpointing"},
    {"enable_fp8_training", false, kFixed, "--storage dit=fp8"},
    {"align_to_opensource_format", false, kIdle, "--lora_format chooses the spelling of files"},
    {"dataset_input_configs", true, kIdle, "--data_file_keys names the columns with paths"},
    {"guidance_scale", true, kLost, "guidance is a matter of sampling"},
    {"report_to", true, kIdle, "--enable_tensorboard_log is on"},
};

struct OwnFlag {
  std::string_view name;
  bool is_refused;  // ignoring it would change what comes out
  std::string_view what, use;
};

// Flags of DiffSynth-Studio that train_command() has for their sake alone.
constexpr OwnFlag kOwnFlags[] = {
    {"find_unused_parameters", false, "parameters without a gradient are never in the way", ""},
    {"remove_prefix_in_ckpt", false, "names in saved files never have such a prefix", ""},
    {"template_model_id_or_path", false, "no family has templates", ""},
    {"enable_lora_hot_loading", false, "LoRAs are always loaded so", ""},
    {"enable_swanlab_log", false, "there is no such log", "--enable_tensorboard_log"},
    {"swanlab_project", false, "there is no such log", ""},
    {"enable_wandb_log", false, "there is no such log", "--enable_tensorboard_log"},
    {"wandb_project", false, "there is no such log", ""},
    {"processor_path", false, "no text encoder sees pictures", "--tokenizer_path"},
    {"audio_processor_path", false, "no input is sound", ""},
    {"initialize_model_on_cpu", false, "weights are read into the memory of --device", ""},
    {"offload_models", false, "components that a stage does not need are not loaded anyway", ""},
    {"customized_optimizer", true, "optimizers are chosen by name", "--optimizer_type"},
    {"quant_options", true, "weights are kept in 8 bits by another flag", "--storage"},
    {"zero_cond_t", true, "no family has models that are trained so", ""},
    {"framewise_decoding", true, "training on videos is not supported", ""},
};

// What to do about one: "use --lora_rank".
std::string hint_of(const ForeignFlag& flag) {
  const std::string text(flag.text);
  switch (flag.fate) {
    case kRenamed:
      return "use --" + text;
    case kFixed:
      return "use " + text;
    case kIdle:
    case kLost:
      return text + ": leave it out";
    case kRead:
      break;
  }
  return text;
}

// Given, and not to say no.
bool is_wanted(const flags::ParsedFlags& flags, std::string_view name) {
  if (!flags.is_given(name)) return false;
  const std::string text = flags.find_text(name).value_or("");
  for (const std::string_view no : {"", "false", "False", "0", "off", "no"}) {
    if (text == no) return false;
  }
  return true;
}

}  // namespace

std::span<const ForeignFlag> launcher_flags() {
  return kLauncherFlags;
}

std::span<const ForeignFlag> trainer_flags() {
  return kTrainerFlags;
}

const ForeignFlag* find_foreign_flag(std::span<const ForeignFlag> flags, std::string_view name) {
  const auto it = std::ranges::find(flags, name, &ForeignFlag::name);
  return it == flags.end() ? nullptr : &*it;
}

std::vector<flags::OtherFlag> other_train_flags() {
  std::vector<flags::OtherFlag> others;
  const auto add = [&](std::span<const ForeignFlag> flags, const char* of) {
    for (const ForeignFlag& flag : flags)
      others.push_back({flag.name, flag.has_value, hint_of(flag), of});
  };
  add(kohya_flags(), "kohya's trainers");
  add(launcher_flags(), "a launcher, not of train");
  add(trainer_flags(), "other trainers");
  return others;
}

bool is_idle_flag(std::string_view name) {
  return std::ranges::find(kOwnFlags, name, &OwnFlag::name) != std::end(kOwnFlags);
}

std::vector<std::string> note_foreign_flags(const flags::ParsedFlags& flags,
                                            report::Problems& problems) {
  std::vector<std::string> notes;
  for (const OwnFlag& flag : kOwnFlags) {
    if (!is_wanted(flags, flag.name)) continue;
    const std::string place = flags.place(flag.name);
    const std::string use = flag.use.empty() ? "" : "use " + std::string(flag.use);
    if (flag.is_refused) {
      problems.add(place + ": " + std::string(flag.what), use.empty() ? "leave it out" : use);
      continue;
    }
    notes.push_back(place + " has no effect: " + std::string(flag.what) +
                    (use.empty() ? "" : "; " + use));
  }
  return notes;
}

}  // namespace atelier::train
