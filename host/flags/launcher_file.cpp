#include "host/flags/launcher_file.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "formats/escape.h"
#include "formats/json.h"
#include "host/files/file_reader.h"
#include "host/files/yaml.h"
#include "host/report/text.h"

namespace atelier::flags {

using nlohmann::json;

namespace {

// What becomes of a setting whose value says something.
enum class Fate {
  kQuiet,    // nothing is said: it keeps books, or changes nothing anywhere
  kIdle,     // has no effect, and why
  kRefused,  // would change results: what to do
  kLaunch,   // is the flag of `launch` of that name
  kTrain,    // is the flag of `train` of that name
  kRead,     // what it becomes depends on the value
};

struct Setting {
  std::string_view name;
  Fate fate;
  std::string_view text = {};
};

using enum Fate;

constexpr std::string_view kMemory = "--vram plans what rests where, and the results are the same";
constexpr std::string_view kSending =
    "gradients are sent in buckets of 25 MiB, and the results are the same";
constexpr std::string_view kSaved = "weights are always saved whole";
constexpr std::string_view kOptimizer = "use --optimizer_type and the flags beside it";
constexpr std::string_view kWrittenToOutput = "progress and metrics are written to --output_path";
constexpr std::string_view kNotHere = "leave it out: there is nothing like it here";

constexpr Setting kAccelerate[] = {
    {"compute_environment", kRead},
    {"distributed_type", kRead},
    {"num_processes", kRead},
    {"num_machines", kRead},
    {"machine_rank", kRead},
    {"main_process_ip", kLaunch, "master_addr"},
    {"main_process_port", kLaunch, "master_port"},
    {"mixed_precision", kRead},
    {"use_cpu", kRead},
    {"gpu_ids", kRead},
    {"deepspeed_config", kRead},
    {"fsdp_config", kRead},
    {"dynamo_config", kIdle, "operators are fused as they are built"},
    {"dynamo_backend", kIdle, "operators are fused as they are built"},
    {"enable_cpu_affinity", kIdle, "processes run on the cores that the system gives them"},
    {"debug", kIdle, "what ranks exchange is always compared"},
    {"rdzv_backend", kQuiet},
    {"same_network", kQuiet},
    {"main_training_function", kQuiet},
    {"downcast_bf16", kIdle, "it is about TPUs"},
    {"tpu_env", kQuiet},
    {"tpu_name", kQuiet},
    {"tpu_zone", kQuiet},
    {"tpu_vm", kQuiet},
    {"tpu_use_cluster", kQuiet},
    {"tpu_use_sudo", kQuiet},
    {"commands", kQuiet},
    {"command_file", kQuiet},
    {"fp8_config", kRefused, "use --storage dit=fp8"},
    {"fp16", kRefused, "use mixed_precision: bf16"},
    {"megatron_lm_config", kRefused, kNotHere},
    {"mpirun_config", kRefused, "start the processes with mpirun instead of atelier launch"},
    {"parallelism_config", kRefused, kNotHere},
};

constexpr Setting kDeepSpeedPlugin[] = {
    {"deepspeed_config_file", kRead},
    {"zero_stage", kRead},
    {"offload_optimizer_device", kRead},
    {"offload_param_device", kRead},
    {"offload_optimizer_nvme_path", kIdle, "nothing is kept on a disk"},
    {"offload_param_nvme_path", kIdle, "nothing is kept on a disk"},
    {"gradient_accumulation_steps", kTrain, "gradient_accumulation_steps"},
    {"gradient_clipping", kTrain, "max_grad_norm"},
    {"zero3_init_flag", kIdle, "weights are read into the place that they are planned for"},
    {"zero3_save_16bit_model", kIdle, kSaved},
    {"deepspeed_hostfile", kRefused, "run atelier launch on each machine, with --node_rank"},
    {"deepspeed_exclusion_filter", kRefused, "run atelier launch on the machines that are meant"},
    {"deepspeed_inclusion_filter", kRefused, "run atelier launch on the machines that are meant"},
    {"deepspeed_multinode_launcher", kQuiet},
    {"deepspeed_moe_layer_cls_names", kIdle, kMemory},
};

constexpr Setting kFsdp[] = {
    {"fsdp_activation_checkpointing", kTrain, "use_gradient_checkpointing"},
    {"fsdp_offload_params", kTrain, "optimize_on_cpu"},
    {"fsdp_version", kQuiet},
    {"fsdp_sharding_strategy", kRead},
    {"fsdp_reshard_after_forward", kRead},
    {"fsdp_auto_wrap_policy", kIdle, kMemory},
    {"fsdp_transformer_layer_cls_to_wrap", kIdle, kMemory},
    {"fsdp_min_num_params", kIdle, kMemory},
    {"fsdp_backward_prefetch", kIdle, kMemory},
    {"fsdp_backward_prefetch_policy", kIdle, kMemory},
    {"fsdp_forward_prefetch", kIdle, kMemory},
    {"fsdp_cpu_ram_efficient_loading", kIdle, kMemory},
    {"fsdp_sync_module_states", kQuiet},
    {"fsdp_use_orig_params", kQuiet},
    {"fsdp_state_dict_type", kIdle, kSaved},
};

constexpr Setting kDeepSpeed[] = {
    {"zero_optimization", kRead},
    {"bf16", kRead},
    {"fp16", kRead},
    {"gradient_accumulation_steps", kTrain, "gradient_accumulation_steps"},
    {"gradient_clipping", kTrain, "max_grad_norm"},
    {"train_micro_batch_size_per_gpu", kTrain, "batch_size"},
    {"train_batch_size", kTrain, "global_batch_size"},
    {"activation_checkpointing", kIdle, kMemory},
    {"wall_clock_breakdown", kIdle, kWrittenToOutput},
    {"steps_per_print", kIdle, kWrittenToOutput},
    {"dump_state", kIdle, kWrittenToOutput},
    {"memory_breakdown", kIdle, kWrittenToOutput},
    {"flops_profiler", kIdle, kWrittenToOutput},
    {"comms_logger", kIdle, kWrittenToOutput},
    {"tensorboard", kIdle, kWrittenToOutput},
    {"wandb", kIdle, kWrittenToOutput},
    {"csv_monitor", kIdle, kWrittenToOutput},
    {"aio", kIdle, "nothing is kept on a disk"},
    {"checkpoint", kIdle, kSaved},
    {"zero_allow_untested_optimizer", kQuiet},
    {"zero_force_ds_cpu_optimizer", kQuiet},
    {"disable_allgather", kQuiet},
    {"prescale_gradients", kIdle, kSending},
    {"optimizer", kRefused, kOptimizer},
    {"scheduler", kRefused, "use --lr_scheduler and --lr_warmup_steps"},
    {"communication_data_type", kRefused, "leave it out: gradients are summed as they are"},
    {"data_types", kRefused, "leave it out: gradients are summed as they are"},
    {"gradient_predivide_factor", kRefused, kNotHere},
    {"sparse_gradients", kRefused, kNotHere},
    {"amp", kRefused, "use bf16"},
    {"torch_autocast", kRefused, "use --dtype bfloat16"},
    {"sparse_attention", kRefused, kNotHere},
    {"data_efficiency", kRefused, kNotHere},
    {"curriculum_learning", kRefused, kNotHere},
    {"progressive_layer_drop", kRefused, kNotHere},
    {"eigenvalue", kRefused, kNotHere},
    {"compression_training", kRefused, kNotHere},
    {"elasticity", kRefused, "torchrun --max_restarts starts again, with any number of processes"},
};

constexpr Setting kZero[] = {
    {"stage", kRead},
    {"offload_optimizer", kRead},
    {"offload_param", kRead},
    {"cpu_offload", kTrain, "optimize_on_cpu"},
    {"zero_quantized_weights", kRefused, kNotHere},
    {"zero_quantized_gradients", kRefused, kNotHere},
    {"zero_quantized_nontrainable_weights", kRefused, "use --storage dit=int8"},
    {"zero_hpz_partition_size", kIdle, kMemory},
    {"stage3_gather_16bit_weights_on_model_save", kIdle, kSaved},
    {"stage3_gather_fp16_weights_on_model_save", kIdle, kSaved},
    {"allgather_partitions", kIdle, kSending},
    {"allgather_bucket_size", kIdle, kSending},
    {"overlap_comm", kIdle, kSending},
    {"reduce_scatter", kIdle, kSending},
    {"reduce_bucket_size", kIdle, kSending},
    {"contiguous_gradients", kIdle, kMemory},
    {"round_robin_gradients", kIdle, kMemory},
    {"sub_group_size", kIdle, kMemory},
    {"stage3_prefetch_bucket_size", kIdle, kMemory},
    {"stage3_param_persistence_threshold", kIdle, kMemory},
    {"stage3_max_live_parameters", kIdle, kMemory},
    {"stage3_max_reuse_distance", kIdle, kMemory},
    {"memory_efficient_linear", kIdle, kMemory},
    {"elastic_checkpoint", kIdle, kSaved},
    {"load_from_fp32_weights", kQuiet},
    {"ignore_unused_parameters", kQuiet},
};

constexpr std::string_view kEachMachine = "run atelier launch on each machine, with --node_rank";
constexpr std::string_view kVisible =
    "put CUDA_VISIBLE_DEVICES=0,1 in front, and say how many processes there are";

// Flags of accelerate launch, torchrun and deepspeed that no file has.
constexpr Setting kWords[] = {
    {"config_file", kLaunch, "config_file"},
    {"cpu", kTrain, "device"},
    {"deepspeed_config_file", kRead},
    {"exclude", kRefused, kVisible},
    {"hostfile", kRefused, kEachMachine},
    {"include", kRefused, kVisible},
    {"local_addr", kIdle, "GLOO_SOCKET_IFNAME names the network interface"},
    {"main_process_ip", kLaunch, "master_addr"},
    {"main_process_port", kLaunch, "master_port"},
    {"master_addr", kLaunch, "master_addr"},
    {"master_port", kLaunch, "master_port"},
    {"max_restarts", kIdle, "torchrun --no-python … atelier train … --resume latest starts again"},
    {"machine_rank", kRead},
    {"multi_gpu", kRead},
    {"nnodes", kRead},
    {"node_rank", kRead},
    {"nproc_per_node", kRead},
    {"num_gpus", kRead},
    {"num_machines", kRead},
    {"num_nodes", kRead},
    {"num_processes", kRead},
    {"rdzv_endpoint", kRead},
    {"use_fsdp", kRead},
};

// What FSDP shares out, as --zero_stage and --zero_group say it; in the order of their numbers
// there.
struct Strategy {
  std::string_view name;
  int stage;
  std::string_view group = {};
};

constexpr Strategy kStrategies[] = {{"FULL_SHARD", 3},
                                    {"SHARD_GRAD_OP", 2},
                                    {"NO_SHARD", 0},
                                    {"HYBRID_SHARD", 3, "node"},
                                    {"HYBRID_SHARD_ZERO2", 2, "node"}};

// A name, its number, or whether weights are given back behind the forward pass; null: none of
// them.
const Strategy* find_strategy(const json& value) {
  if (value.is_boolean()) return &kStrategies[value.get<bool>() ? 0 : 1];
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    return number >= 1 && number <= std::ssize(kStrategies) ? &kStrategies[number - 1] : nullptr;
  }
  if (!value.is_string()) return nullptr;
  std::string name = value.get<std::string>();
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  const auto found = std::ranges::find(kStrategies, name, &Strategy::name);
  return found == std::end(kStrategies) ? nullptr : found;
}

const Setting* find_word(std::string_view name) {
  for (const std::span<const Setting> settings :
       {std::span<const Setting>(kWords), std::span<const Setting>(kDeepSpeedPlugin),
        std::span<const Setting>(kFsdp)}) {
    const auto setting = std::ranges::find(settings, name, &Setting::name);
    if (setting != settings.end()) return &*setting;
  }
  return nullptr;
}

// As a file would have it.
json value_of_word(std::string_view name, const std::string& text) {
  if (name == "cpu") return name;
  if (name == "nproc_per_node" && text == "auto") return "gpu";
  if (text.empty() || text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  const auto number = report::parse_number<int64_t>(text);
  return number ? json(*number) : json(text);
}

// Whether a value says nothing, or that something is not done.
bool is_neutral(const json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    return text.empty() || text == "no" || text == "none" || text == "auto" || text == "NO";
  }
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

class Reader {
 public:
  explicit Reader(report::Problems& problems) : problems_(problems) {}

  // `settings`: those of the file's kind; empty where it tells the kind itself.
  void read_file(const std::string& path, std::span<const Setting> settings = {});
  void read_words(std::span<const std::pair<std::string, std::string>> words);
  LauncherFile finish();

 private:
  // The settings of one file, or of a part of it, whose name stands before theirs.
  void take_all(const json& object, const std::string& part, std::span<const Setting> settings);
  void take(const std::string& place, const Setting& setting, const json& value);
  void read(const std::string& place, std::string_view name, const json& value);
  bool read_place(const std::string& place, std::string_view name, const json& value);
  void read_precision(const std::string& place, const std::string& word);
  void read_sharding(const std::string& place, std::string_view name, const json& value);
  void read_zero_stage(const std::string& place, const json& value);
  void read_offload(const std::string& place, const json& value, bool is_of_optimizer);
  void read_enabled(const std::string& place, const std::string& word, const json& value);
  void count(const std::string& place, const json& value, int64_t low, int64_t& number);

  void refuse(const std::string& place, const json& value, std::string_view use) {
    problems_.add(place + ": " + text_of(value) + " would make another run of it",
                  std::string(use));
  }
  void leave_out(const std::string& place, const json& value, std::string_view why) {
    const std::string shown = value.is_structured() ? "" : ": " + text_of(value);
    file_.notes.push_back(place + shown + " has no effect: " + std::string(why));
  }
  void set(std::vector<std::pair<std::string, std::string>>& flags, std::string_view name,
           const json& value) {
    const bool is_there =
        std::ranges::any_of(flags, [&](const auto& f) { return f.first == name; });
    if (!is_there) flags.emplace_back(name, text_of(value));
  }

  report::Problems& problems_;
  LauncherFile file_;
  std::string place_;  // of the file that is read
  int64_t processes_ = 0, machines_ = 1;
  std::optional<int64_t> machine_;
  bool is_of_all_gpus_ = false;
  int64_t zero_stage_ = 0;
  bool is_fsdp_ = false;
  const Strategy* strategy_ = nullptr;                     // that is given
  std::optional<std::pair<std::string, json>> offloaded_;  // parameters: the setting and its value
};

json parse_file(const std::string& path) {
  const std::string text = files::read_text_file(path);
  try {
    return path.ends_with(".json") ? formats::parse_json(text) : files::parse_yaml(text);
  } catch (const formats::ParseError& error) {
    throw files::at_file(path, error, ErrorCode::kInvalidArgument);
  }
}

void Reader::read_file(const std::string& path, std::span<const Setting> settings) {
  const std::string outer = place_;
  place_ = files::display_path(path);
  problems_.collect([&] {
    const json object = parse_file(path);
    if (!object.is_object())
      throw Error(ErrorCode::kInvalidArgument, place_ + ": no settings of accelerate or DeepSpeed");
    if (settings.empty() && object.contains("distributed_type")) settings = kAccelerate;
    take_all(object, "", settings.empty() ? kDeepSpeed : settings);
  });
  place_ = outer;
}

void Reader::read_words(std::span<const std::pair<std::string, std::string>> words) {
  for (const auto& [name, text] : words)
    take("--" + name, *find_word(name), value_of_word(name, text));
  if (machines_ > 1 && !machine_)
    problems_.add("nothing says which of " + std::to_string(machines_) + " machines this is",
                  "add --node_rank, or torchrun --no-python … atelier train …, which counts them");
}

void Reader::take_all(const json& object, const std::string& part,
                      std::span<const Setting> settings) {
  if (object.is_null()) return;
  if (!object.is_object()) return problems_.add(place_ + ": " + part + " is no list of settings");
  for (const auto& [name, value] : object.items()) {
    const std::string place =
        place_ + ": " + (part.empty() ? "" : part + ".") + formats::quote_and_escape(name);
    const auto setting = std::ranges::find(settings, name, &Setting::name);
    if (setting == settings.end()) {
      problems_.add(place + " is not known", "take it out, if the run is the same without it");
    } else {
      take(place_ + ": " + (part.empty() ? "" : part + ".") + name, *setting, value);
    }
  }
}

void Reader::take(const std::string& place, const Setting& setting, const json& value) {
  if (setting.name == "fsdp_reshard_after_forward" && value == false)
    return read_sharding(place, setting.name, value);
  if (is_neutral(value) || setting.fate == kQuiet) return;
  switch (setting.fate) {
    case kIdle:
      return leave_out(place, value, setting.text);
    case kRefused:
      return refuse(place, value, setting.text);
    case kLaunch:
      return set(file_.launch, setting.text, value);
    case kTrain:
      return set(file_.train, setting.text, value);
    default:
      return read(place, setting.name, value);
  }
}

void Reader::read(const std::string& place, std::string_view name, const json& value) {
  const std::string text = text_of(value);
  if (read_place(place, name, value)) return;
  if (name == "mixed_precision") {
    read_precision(place, text);
  } else if (name == "bf16" || name == "fp16") {
    read_enabled(place, std::string(name), value);
  } else if (name == "use_cpu") {
    set(file_.train, "device", "cpu");
  } else if (name == "gpu_ids" && text != "all") {
    refuse(place, value, "start atelier with CUDA_VISIBLE_DEVICES=" + text);
  } else if (name == "compute_environment" && text != "LOCAL_MACHINE") {
    refuse(place, value, "run atelier launch on the machines themselves");
  } else if (name == "use_fsdp" || (name == "distributed_type" && text == "FSDP")) {
    is_fsdp_ = true;
  } else if (name == "distributed_type" && text != "MULTI_GPU" && text != "MULTI_CPU" &&
             text != "DEEPSPEED") {
    refuse(place, value, "MULTI_GPU, DEEPSPEED and FSDP are known");
  } else if (name == "deepspeed_config") {
    take_all(value, std::string(name), kDeepSpeedPlugin);
  } else if (name == "fsdp_config") {
    take_all(value, std::string(name), kFsdp);
  } else if (name == "fsdp_sharding_strategy" || name == "fsdp_reshard_after_forward") {
    read_sharding(place, name, value);
  } else if (name == "zero_optimization") {
    take_all(value, std::string(name), kZero);
  } else if (name == "deepspeed_config_file") {
    read_file(text, kDeepSpeed);
  } else if (name == "zero_stage" || name == "stage") {
    read_zero_stage(place, value);
  } else if (name.starts_with("offload_")) {
    read_offload(place, value, name.starts_with("offload_optimizer"));
  }
}

// Settings that say which processes there are. Returns whether this is one.
bool Reader::read_place(const std::string& place, std::string_view name, const json& value) {
  const std::string text = text_of(value);
  if (name == "num_processes") {
    count(place, value, 1, processes_);
  } else if (name == "num_machines" || name == "num_nodes" || name == "nnodes") {
    count(place, value, 1, machines_);
  } else if (name == "machine_rank" || name == "node_rank") {
    count(place, value, 0, machine_.emplace());
  } else if (name == "nproc_per_node" || name == "num_gpus") {
    set(file_.launch, "nproc_per_node", text == "gpu" ? json("auto") : value);
  } else if (name == "multi_gpu") {
    is_of_all_gpus_ = true;
  } else if (name == "rdzv_endpoint") {
    const size_t colon = text.rfind(':');
    set(file_.launch, "master_addr", text.substr(0, colon));
    if (colon != std::string::npos) set(file_.launch, "master_port", text.substr(colon + 1));
  } else {
    return false;
  }
  return true;
}

void Reader::count(const std::string& place, const json& value, int64_t low, int64_t& number) {
  if (!value.is_number_integer() || value.get<int64_t>() < low || value.get<int64_t>() > 1'000'000)
    return problems_.add(place + ": " + text_of(value) + " is no whole number from " +
                         std::to_string(low));
  number = value.get<int64_t>();
}

void Reader::read_precision(const std::string& place, const std::string& word) {
  if (word == "bf16") return set(file_.train, "dtype", "bfloat16");
  refuse(place, word, word == "fp16" ? "use bf16: gradients of float16 vanish" : "use bf16");
}

void Reader::read_enabled(const std::string& place, const std::string& word, const json& value) {
  if (value.is_object() && value.contains("enabled") && is_neutral(value["enabled"])) return;
  read_precision(place, word);
}

// Two settings say the same; that of FSDP's first version holds where it is given.
void Reader::read_sharding(const std::string& place, std::string_view name, const json& value) {
  const Strategy* const strategy = find_strategy(value);
  if (strategy == nullptr)
    return problems_.add(place + ": " + text_of(value) + " is no strategy that is known",
                         "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD and "
                         "HYBRID_SHARD_ZERO2 are");
  if (strategy_ == nullptr || name == "fsdp_sharding_strategy") strategy_ = strategy;
}

void Reader::read_zero_stage(const std::string& place, const json& value) {
  count(place, value, 0, zero_stage_);
  if (zero_stage_ > 3) return problems_.add(place + ": stages are 0 to 3");
  if (zero_stage_ > 0) set(file_.train, "zero_stage", zero_stage_);
}

// `value`: a device, or an object that names one.
void Reader::read_offload(const std::string& place, const json& value, bool is_of_optimizer) {
  const json device = value.is_object() ? value.value("device", json("none")) : value;
  if (is_neutral(device)) return;
  if (device != "cpu")
    return problems_.add(place + ": " + text_of(device) + " is no place that is known",
                         "cpu is one");
  if (is_of_optimizer) return set(file_.train, "optimize_on_cpu", true);
  offloaded_ = {place, device};
}

LauncherFile Reader::finish() {
  if (is_fsdp_) {
    const Strategy& strategy = strategy_ != nullptr ? *strategy_ : kStrategies[0];
    if (strategy.stage > 0) set(file_.train, "zero_stage", strategy.stage);
    if (!strategy.group.empty()) set(file_.train, "zero_group", strategy.group);
  }
  if (offloaded_)
    leave_out(
        offloaded_->first, offloaded_->second,
        zero_stage_ < 3 ? "below stage 3 parameters stay on the GPU, as in DeepSpeed" : kMemory);
  if (processes_ % machines_ != 0)
    problems_.add("num_processes " + std::to_string(processes_) +
                  " is no multiple of num_machines " + std::to_string(machines_));
  if (processes_ > 0) set(file_.launch, "nproc_per_node", processes_ / machines_);
  if (is_of_all_gpus_) set(file_.launch, "nproc_per_node", "auto");
  if (machines_ > 1) {
    set(file_.launch, "nnodes", machines_);
    if (machine_) set(file_.launch, "node_rank", *machine_);
  }
  return std::move(file_);
}

}  // namespace

LauncherFile read_launcher_file(const std::string& path, report::Problems& problems) {
  Reader reader(problems);
  reader.read_file(path);
  return reader.finish();
}

LauncherFile read_launcher_words(std::span<const std::pair<std::string, std::string>> words,
                                 report::Problems& problems) {
  Reader reader(problems);
  reader.read_words(words);
  return reader.finish();
}

bool is_launcher_word(std::string_view name) {
  return find_word(name) != nullptr;
}

}  // namespace atelier::flags
