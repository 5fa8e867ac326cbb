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
#include "host/flags/compat_flags.h"
#include "host/report/text.h"

namespace atelier::flags {

using nlohmann::json;
using enum CompatFate;

namespace {

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

// As a file would have it.
json value_of_word(const std::string& text) {
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

json parse_file(const std::string& path) {
  const std::string text = files::read_text_file(path);
  try {
    return path.ends_with(".json") ? formats::parse_json(text) : files::parse_yaml(text);
  } catch (const formats::ParseError& error) {
    throw files::at_file(path, error, ErrorCode::kInvalidArgument);
  }
}

class Reader {
 public:
  explicit Reader(report::Problems& problems) : problems_(problems) {}

  // `is_named`: accelerate's file names this one, which is DeepSpeed's.
  void read_file(const std::string& path, bool is_named = false) {
    const std::string outer = place_;
    place_ = files::display_path(path);
    problems_.collect([&] {
      const json object = parse_file(path);
      if (!object.is_object())
        throw Error(ErrorCode::kInvalidArgument,
                    place_ + ": no settings of accelerate or DeepSpeed");
      const bool is_accelerates = !is_named && object.contains("distributed_type");
      take_all(object, "", is_accelerates ? kAccelerate : kDeepSpeed);
    });
    place_ = outer;
  }

  void read_words(std::span<const std::pair<std::string, std::string>> words) {
    for (const auto& [name, text] : words)
      take("--" + name, *find_compat_flag(name, kLauncher), value_of_word(text));
    if (machines_ > 1 && !machine_)
      problems_.add(
          "nothing says which of " + std::to_string(machines_) + " machines this is",
          "add --node_rank, or torchrun --no-python … atelier train …, which counts them");
  }

  LauncherFile finish() {
    if (is_fsdp_) {
      const Strategy& strategy = strategy_ != nullptr ? *strategy_ : kStrategies[0];
      if (strategy.stage > 0) set(file_.train, "zero_stage", strategy.stage);
      if (!strategy.group.empty()) set(file_.train, "zero_group", strategy.group);
    }
    if (offloaded_)
      leave_out(offloaded_->first, offloaded_->second,
                zero_stage_ < 3 ? "below stage 3 parameters stay on the GPU, as in DeepSpeed"
                                : "--vram plans what rests where, and the results are the same");
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

 private:
  // The settings of one file, or of a part of it, whose name stands before theirs.
  void take_all(const json& object, const std::string& part, unsigned origin) {
    if (object.is_null()) return;
    if (!object.is_object()) return problems_.add(place_ + ": " + part + " is no list of settings");
    const std::string place = place_ + ": " + (part.empty() ? "" : part + ".");
    for (const auto& [name, value] : object.items()) {
      if (const CompatFlag* flag = find_compat_flag(name, origin)) {
        take(place + name, *flag, value);
      } else {
        problems_.add(place + formats::quote_and_escape(name) + " is not known",
                      "take it out, if the run is the same without it");
      }
    }
  }

  void take(const std::string& place, const CompatFlag& flag, const json& value) {
    if (flag.name == "fsdp_reshard_after_forward" && value == false)
      return read_sharding(place, flag.name, value);
    const bool is_all = flag.text == "nproc_per_node" && (value == "auto" || value == "gpu");
    if ((is_neutral(value) && !is_all) || flag.is_harmless(text_of(value))) return;
    switch (flag.fate) {
      case kQuiet:
        return;
      case kIdle:
        return leave_out(place, value, flag.text);
      case kLaunch:
        return set(file_.launch, flag.name_here(), is_all ? json("auto") : value);
      case kRenamed:
        return set(file_.train, flag.name_here(), value);
      case kFixed:
        return set(file_.train, flag.fixed().first, flag.fixed().second);
      case kRead:
        return read(place, flag, value);
      case kLost:
      case kModel:
        return refuse(place, value, flag.text);
    }
  }

  void read(const std::string& place, const CompatFlag& flag, const json& value) {
    const std::string text = text_of(value);
    const std::string_view name = flag.name;
    if (read_machines(place, name, value)) return;
    if (name == "mixed_precision" || name == "bf16" || name == "fp16") {
      read_precision(place, name, value);
    } else if (name == "gpu_ids") {
      refuse(place, value, "start atelier with CUDA_VISIBLE_DEVICES=" + text);
    } else if (name == "use_fsdp" || (name == "distributed_type" && text == "FSDP")) {
      is_fsdp_ = true;
    } else if (name == "deepspeed_config") {
      take_all(value, "deepspeed_config", kDeepSpeedPlugin);
    } else if (name == "fsdp_config") {
      take_all(value, "fsdp_config", kFsdp);
    } else if (name == "zero_optimization") {
      take_all(value, "zero_optimization", kZero);
    } else if (name.starts_with("fsdp_")) {
      read_sharding(place, name, value);
    } else if (name == "deepspeed_config_file") {
      read_file(text, /*is_named=*/true);
    } else if (name == "zero_stage" || name == "stage") {
      read_zero_stage(place, value);
    } else if (name.starts_with("offload_")) {
      read_offload(place, value, name.starts_with("offload_optimizer"));
    } else {
      refuse(place, value, flag.text);
    }
  }

  // Settings that say which processes there are. Returns whether this is one.
  bool read_machines(const std::string& place, std::string_view name, const json& value) {
    if (name == "num_processes") {
      count(place, value, 1, processes_);
    } else if (name == "num_machines" || name == "num_nodes" || name == "nnodes") {
      count(place, value, 1, machines_);
    } else if (name == "machine_rank" || name == "node_rank") {
      count(place, value, 0, machine_.emplace());
    } else if (name == "multi_gpu") {
      is_of_all_gpus_ = true;
    } else if (name == "rdzv_endpoint") {
      const std::string text = text_of(value);
      const size_t colon = text.rfind(':');
      set(file_.launch, "master_addr", text.substr(0, colon));
      if (colon != std::string::npos) set(file_.launch, "master_port", text.substr(colon + 1));
    } else {
      return false;
    }
    return true;
  }

  void count(const std::string& place, const json& value, int64_t low, int64_t& number) {
    if (!value.is_number_integer() || value.get<int64_t>() < low ||
        value.get<int64_t>() > 1'000'000)
      return problems_.add(place + ": " + text_of(value) + " is no whole number from " +
                           std::to_string(low));
    number = value.get<int64_t>();
  }

  // accelerate names the type, and DeepSpeed enables one by its own name.
  void read_precision(const std::string& place, std::string_view name, const json& value) {
    const bool is_named = name == "mixed_precision";
    if (!is_named && value.is_object() && value.contains("enabled") && is_neutral(value["enabled"]))
      return;
    const std::string word = is_named ? text_of(value) : std::string(name);
    if (word == "bf16") return set(file_.train, "dtype", "bfloat16");
    refuse(place, word, word == "fp16" ? "use bf16: gradients of float16 vanish" : "use bf16");
  }

  // Two settings say the same; that of FSDP's first version holds where it is given.
  void read_sharding(const std::string& place, std::string_view name, const json& value) {
    const Strategy* const strategy = find_strategy(value);
    if (strategy == nullptr)
      return problems_.add(place + ": " + text_of(value) + " is no strategy that is known",
                           "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD and "
                           "HYBRID_SHARD_ZERO2 are");
    if (strategy_ == nullptr || name == "fsdp_sharding_strategy") strategy_ = strategy;
  }

  void read_zero_stage(const std::string& place, const json& value) {
    count(place, value, 0, zero_stage_);
    if (zero_stage_ > 3) return problems_.add(place + ": stages are 0 to 3");
    if (zero_stage_ > 0) set(file_.train, "zero_stage", zero_stage_);
  }

  // `value`: a device, or an object that names one.
  void read_offload(const std::string& place, const json& value, bool is_of_optimizer) {
    const json device = value.is_object() ? value.value("device", json("none")) : value;
    if (is_neutral(device)) return;
    if (device != "cpu")
      return problems_.add(place + ": " + text_of(device) + " is no place that is known",
                           "cpu is one");
    if (is_of_optimizer) return set(file_.train, "optimize_on_cpu", true);
    offloaded_ = {place, device};
  }

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

}  // namespace atelier::flags
