#include "host/train/foreign_flags.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

#include "formats/escape.h"

namespace atelier::train {
namespace {

struct LauncherFlag {
  std::string_view name;
  bool has_value;
  std::string_view use;
};

constexpr std::string_view kOneProcess = "one process trains on one device: leave it out";

constexpr LauncherFlag kLauncherFlags[] = {
    {"config_file", true,
     "one process trains on one device: leave it out; --config reads a TOML file of these flags"},
    {"mixed_precision", true, "--dtype says what weights are kept and computed in"},
    {"num_processes", true, kOneProcess},
    {"num_machines", true, kOneProcess},
    {"machine_rank", true, kOneProcess},
    {"main_process_ip", true, kOneProcess},
    {"main_process_port", true, kOneProcess},
    {"multi_gpu", false, kOneProcess},
    {"gpu_ids", true, "--device cuda:N chooses a GPU"},
    {"use_deepspeed", false, kOneProcess},
    {"deepspeed_config_file", true, kOneProcess},
    {"zero_stage", true, kOneProcess},
    {"use_fsdp", false, kOneProcess},
    {"dynamo_backend", true, "leave it out"},
    {"num_cpu_threads_per_process", true, "--threads N sets the threads of the CPU"},
    {"nproc_per_node", true, kOneProcess},
};

const LauncherFlag* find_launcher_flag(std::string_view argument) {
  if (!argument.starts_with("--")) return nullptr;
  argument.remove_prefix(2);
  const std::string_view name = argument.substr(0, argument.find('='));
  const auto* it = std::find_if(std::begin(kLauncherFlags), std::end(kLauncherFlags),
                                [&](const LauncherFlag& flag) { return flag.name == name; });
  return it == std::end(kLauncherFlags) ? nullptr : it;
}

bool is_launcher_word(std::string_view argument) {
  for (const std::string_view word :
       {"accelerate", "launch", "torchrun", "deepspeed", "python", "python3"}) {
    if (argument == word) return true;
  }
  return argument.ends_with(".py");
}

struct ForeignFlag {
  std::string_view name;
  bool is_refused;  // ignoring it would change what comes out
  std::string_view what, use;
};

constexpr ForeignFlag kForeignFlags[] = {
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

// Given, and not to say no.
bool is_wanted(const cli::ParsedFlags& flags, std::string_view name) {
  if (!flags.is_given(name)) return false;
  const std::string text = flags.find_text(name).value_or("");
  for (const std::string_view no : {"", "false", "False", "0", "off", "no"}) {
    if (text == no) return false;
  }
  return true;
}

}  // namespace

std::vector<std::string> take_launcher_words(std::span<const std::string> arguments,
                                             report::Problems& problems) {
  std::vector<std::string> rest;
  bool is_before_flags = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (const LauncherFlag* flag = find_launcher_flag(argument)) {
      problems.add("--" + std::string(flag->name) + " is a flag of a launcher, not of train",
                   std::string(flag->use));
      if (flag->has_value && argument.find('=') == std::string::npos && i + 1 < arguments.size())
        ++i;
    } else if (is_before_flags && is_launcher_word(argument)) {
      problems.add(formats::quote_and_escape(argument) + " is no part of the command",
                   "write atelier train --plugin NAME and the flags that stand behind train.py");
    } else {
      is_before_flags = false;
      rest.push_back(argument);
    }
  }
  return rest;
}

std::vector<std::string> note_foreign_flags(const cli::ParsedFlags& flags,
                                            report::Problems& problems) {
  std::vector<std::string> notes;
  for (const ForeignFlag& flag : kForeignFlags) {
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
