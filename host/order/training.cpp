#include "host/order/training.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "formats/escape.h"
#include "formats/utf8.h"
#include "host/data/control_files.h"
#include "host/files/file_reader.h"
#include "host/files/folder.h"
#include "host/flags/compat_flags.h"
#include "host/model/model_flags.h"
#include "host/order/config_file.h"
#include "host/order/training_checks.h"
#include "host/report/text.h"
#include "host/run/memory_timeline.h"
#include "host/run/occupants.h"

namespace atelier::order {
namespace {

using formats::quote_and_escape;

namespace fs = std::filesystem;

using flags::CommandSpec;
using flags::FlagSpec;
using flags::GivenValue;
using flags::ParsedFlags;

// The first of each name, without those that say what the preset says: they were not chosen.
std::vector<GivenValue> choose(const std::vector<GivenValue>& values, const CommandSpec& command) {
  std::vector<GivenValue> chosen;
  std::set<std::string> seen;
  for (const GivenValue& value : values) {
    if (!seen.insert(value.name).second || is_beginning(value.name)) continue;
    if (flags::find_flag(command, value.name)->preset != value.text) chosen.push_back(value);
  }
  return chosen;
}

// Names that neither the command line nor --config says.
std::set<std::string, std::less<>> inherited(const Words& words, const Words::Below& below) {
  std::set<std::string, std::less<>> names, said;
  for (size_t i = 0; i < below.values.size(); ++i) {
    const std::string& name = below.values[i].name;
    const bool is_first = said.insert(name).second;
    if (is_first && i >= below.first_resumed && !flags::peek_flag(words.command_line(), name))
      names.insert(name);
  }
  return names;
}

// ---- From flags to a configuration ----

// Columns that direct distillation reads itself: they are no inputs of a family.
bool is_distill_column(std::string_view name) {
  return name == "seed" || name == "rand_device" || name == "num_inference_steps" ||
         name == "cfg_scale";
}

// What the task and the seed decide.
void fill_task(Training& c, const ParsedFlags& flags, std::string_view command) {
  const std::string task = flags.text("task");
  c.task = task.starts_with("direct_distill") ? Task::kDirectDistill : Task::kSft;
  if (task.ends_with(":data_process") || command == "cache") {
    c.stage = Stage::kDataProcess;
  } else if (task.ends_with(":train")) {
    c.stage = Stage::kTrain;
  }
  c.order.seed = c.optimizer.seed = c.seed;
  if (c.task == Task::kDirectDistill) std::erase_if(c.dataset.extra_inputs, is_distill_column);
}

// Where encoded samples lie. Without a dataset, dataset_base_path is a cache, or a run's folder
// that holds one: what DiffSynth-Studio's second stage is told.
void fill_cache_path(Training& c) {
  const bool is_said = !c.cache_path.empty();
  std::string& base = c.dataset.dataset_base_path;
  if (!is_said) c.cache_path = (fs::path(c.output.output_path) / "cache").string();
  if (c.stage != Stage::kTrain || !c.dataset.dataset_metadata_path.empty()) return;
  if (base.empty() || is_cache(base) || is_cache(fs::path(base) / "cache")) {
    if (!is_said && !base.empty())
      c.cache_path = is_cache(base) ? base : (fs::path(base) / "cache").string();
    base.clear();
  }
}

double parse_number(const std::string& name, const std::string& text) {
  const auto value = report::parse_number<double>(text);
  if (!value || !std::isfinite(*value))
    throw Error(ErrorCode::kInvalidArgument,
                name + ": " + quote_and_escape(text) + " is no number");
  return *value;
}

bool parse_truth(const std::string& name, const std::string& text) {
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  throw Error(ErrorCode::kInvalidArgument,
              name + ": " + quote_and_escape(text) + " is neither true nor false");
}

// What published lines ask of Prodigy and Adafactor and is always done here.
struct DoneAnyway {
  std::string_view key, value, in_python, why;
};
constexpr std::string_view kRateOfFlags = "the rate is what --learning_rate and --lr_scheduler say";
constexpr DoneAnyway kDoneAnyway[] = {
    {"decouple", "true", "True", "weight decay is decoupled, as AdamW's"},
    {"growth_rate", "inf", "float('inf')", "d grows by any factor"},
    {"slice_p", "1", "1.0", "d is estimated from all values"},
    {"relative_step", "false", "False", kRateOfFlags},
    {"warmup_init", "false", "False", kRateOfFlags},
};

void check_done_anyway(const DoneAnyway& arg, const std::string& text) {
  if (text == arg.value || text == arg.in_python) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(arg.key) + ": " + quote_and_escape(text) + " is not done, as " +
                  std::string(arg.why),
              "leave it out");
}

// A number that a flag says.
void check_same(const std::string& key, const std::string& text, const std::string& flag,
                double said) {
  if (parse_number(key, text) == said) return;
  throw Error(ErrorCode::kInvalidArgument, key + ": it is a flag here", "use " + flag + " " + text);
}

// One "key=value" of --optimizer_args.
void set_optimizer_arg(Training& c, const std::string& part) {
  optim::Options& o = c.optimizer;
  const size_t equals = part.find('=');
  if (equals == std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, quote_and_escape(part) + " is no key=value");
  const std::string key = part.substr(0, equals), text = part.substr(equals + 1);
  const std::map<std::string, double*> numbers = {{"clip_threshold", &o.clip_threshold},
                                                  {"decay_rate", &o.decay_rate},
                                                  {"eps1", &o.adafactor_eps1},
                                                  {"eps2", &o.adafactor_eps2},
                                                  {"d0", &o.prodigy_d0},
                                                  {"d_coef", &o.prodigy_d_coef}};
  const std::map<std::string, bool*> truths = {
      {"scale_parameter", &o.scale_parameter},
      {"use_bias_correction", &o.prodigy_use_bias_correction},
      {"safeguard_warmup", &o.prodigy_safeguard_warmup}};
  if (const auto number = numbers.find(key); number != numbers.end()) {
    *number->second = parse_number(key, text);
  } else if (const auto truth = truths.find(key); truth != truths.end()) {
    *truth->second = parse_truth(key, text);
  } else if (key == "beta3") {
    o.prodigy_beta3 = parse_number(key, text);
  } else if (const auto* const done = std::ranges::find(kDoneAnyway, key, &DoneAnyway::key);
             done != std::end(kDoneAnyway)) {
    check_done_anyway(*done, text);
  } else if (key == "weight_decay") {
    check_same(key, text, "--weight_decay", c.weight_decay);
  } else if (key == "eps") {
    check_same(key, text, "--adam_epsilon", o.eps);
  } else {
    throw Error(ErrorCode::kInvalidArgument, quote_and_escape(key) + " is not known",
                "there are clip_threshold, decay_rate, eps1, eps2 and scale_parameter of "
                "Adafactor, and d0, d_coef, beta3, use_bias_correction and safeguard_warmup of "
                "Prodigy; others are flags: --adam_beta1, --adam_epsilon, --weight_decay");
  }
}

void fill_optimizer_args(Training& c, const ParsedFlags& flags, report::Problems& problems) {
  for (const std::string& part : flags.list("optimizer_args")) {
    try {
      set_optimizer_arg(c, part);
    } catch (const Error& error) {
      problems.add(error.at(flags.place("optimizer_args")));
    }
  }
}

// Two names of one flag.
int64_t integer_of(const ParsedFlags& flags, const std::string& name, const std::string& newer,
                   report::Problems& problems) {
  const auto value = flags.find_integer(name), other = flags.find_integer(newer);
  if (value && other && *value != *other)
    problems.add(flags.place(name) + ": " + newer + " says something else", "give one of them");
  return value.value_or(other.value_or(0));
}

void fill_offload(OffloadSettings& o, const ParsedFlags& flags, report::Problems& problems) {
  const int64_t least =
      integer_of(flags, "param_size_threshold", "cpu_offload_split_threshold", problems);
  constexpr int64_t kMost = int64_t{1} << 30;
  if (least < 0 || least > kMost) {
    problems.add(
        flags.place("param_size_threshold") + ": " + std::to_string(least) + " is no size in MiB",
        "use 1 to keep norms and biases on the device");
    return;
  }
  o.least_bytes = least << 20;
}

void fill_memory(Training& c, const ParsedFlags& flags, report::Problems& problems) {
  run::check_report_path(c.memory.report, problems, c.output.output_path);
  fill_offload(c.offload, flags, problems);
  c.model.placement.offload_others = c.offload.weights;
  c.use_gradient_checkpointing |= c.offloads_activations;
  const std::string budget = flags.text("activation_memory_budget");
  if (budget.empty()) return;
  try {
    c.activation_budget = memory::parse_activation_budget(budget);
  } catch (const Error& error) {
    problems.add(
        error.at(flags.place("activation_memory_budget") + ": " + quote_and_escape(budget)));
  }
}

void check_utf8(const CommandSpec& command, const ParsedFlags& flags, report::Problems& problems) {
  for (const FlagSpec& flag : command.flags) {
    const std::string text = flags.find_text(flag.name).value_or("");
    if (const size_t at = formats::find_invalid_utf8(text); at != std::string::npos)
      problems.add(flags.place(flag.name) + ": byte " + std::to_string(at) + " is no UTF-8");
  }
}

void append(std::vector<std::string>& lines, const std::vector<std::string>& more) {
  lines.insert(lines.end(), more.begin(), more.end());
}

// What was told once is not told again where the dataset is opened.
void drop_unknown(std::vector<std::string>& names, const std::vector<std::string>& known) {
  std::erase_if(names, [&](const std::string& name) {
    return std::find(known.begin(), known.end(), name) == known.end();
  });
}

// Whether an input takes the files of --control_path, as far as the family can say it.
void check_control_path(std::string& path, std::string_view flag, const Training& config,
                        const ParsedFlags& flags, const ModelFamily& family,
                        report::Problems& problems) {
  if (path.empty()) return;
  try {
    data::control_input(family.inputs(), config.dataset.extra_inputs, /*variant=*/"");
  } catch (const Error& error) {
    problems.add(error.at(flags.place(flag)));
    path.clear();  // so that the dataset does not tell it again
  }
}

Training parse(const Words& words, const ModelFamily* family, report::Problems& problems,
               std::string_view command, bool looks_at_files) {
  const CommandSpec spec = train_command(family, std::string(command));
  const size_t before = problems.size();
  const Words::Below below = words.below(spec, problems);
  const ParsedFlags flags =
      flags::parse_flags(spec, words.command_line(), choose(below.values, spec), problems);
  check_utf8(spec, flags, problems);
  Training config;
  config.family = family;
  const flags::Table table = config_table(config, family, command);
  config.model = model::load_request(flags, problems);
  table.read(flags, problems);
  config.resume = words.resume();
  if (!config.resume.empty() && words.find("resume") == "latest") {
    // The line begins a run, too, with values that its state has by now.
    config.lora.checkpoint.clear();
    config.resume_from_checkpoint.clear();
  }
  config.inherited = inherited(words, below);
  std::error_code failure;
  config.output.is_resumed =
      !words.resumed_folder().empty() &&
      fs::equivalent(words.resumed_folder(), config.output.output_path, failure);
  fill_task(config, flags, command);
  fill_optimizer_args(config, flags, problems);
  fill_memory(config, flags, problems);
  fill_cache_path(config);
  // Beside weights of its own no run begins from the beginning: it is refused.
  if (!config.output.is_resumed || run::find_occupants(config.output.output_path).results.empty())
    config.notes = words.notes();
  append(config.notes, flags::note_compat_flags(flags, problems));
  append(config.notes, flags::note_compat_variables());
  append(config.notes, note_idle_flags(config, flags));
  check_config(config, flags, family, problems);
  if (family != nullptr) {
    drop_unknown(config.dataset.extra_inputs, trained_inputs(*family));
    check_control_path(config.dataset.control_path, "control_path", config, flags, *family,
                       problems);
    check_control_path(config.validation.control_path, "validation_control_path", config, flags,
                       *family, problems);
  }
  if (looks_at_files) check_files(config, flags, family, problems);
  if (problems.size() == before) config.effective_toml = write_config(spec, flags);
  return config;
}

}  // namespace

std::vector<std::string> Training::trained_names() const {
  std::vector<std::string> names = trainable_models;
  names.insert(names.end(), lora.base_models.begin(), lora.base_models.end());
  return names;
}

void Training::rewrite_toml(std::string_view flag, std::string_view value) {
  const std::string name = "\n" + std::string(flag) + " = ";
  const size_t at = effective_toml.find(name);
  if (at == std::string::npos) return;  // mistakes were found: nothing is kept
  const size_t begin = at + name.size();
  effective_toml.replace(begin, effective_toml.find('\n', begin) - begin, value);
}

Training read_training(const Words& words, const ModelFamily* family, report::Problems& problems,
                       std::string_view command) {
  return parse(words, family, problems, command, /*looks_at_files=*/true);
}

Training parse_settings(std::span<const std::string> arguments, const ModelFamily* family,
                        report::Problems& problems, std::string_view command) {
  const Words words({arguments.begin(), arguments.end()},
                    train_command(family, std::string(command)), problems);
  return parse(words, family, problems, command, /*looks_at_files=*/false);
}

}  // namespace atelier::order
