// atelier check-plugin: the conformance suite, in a process of its own.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <signal.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Context.h>

#include "atelier/error.h"

#include "host/cli/child.h"
#include "host/cli/commands.h"
#include "host/conformance/conformance.h"
#include "host/conformance/images.h"
#include "host/conformance/reference.h"
#include "host/device/cuda.h"
#include "host/model/model_flags.h"
#include "host/plugins/plugin_call.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/error_line.h"

namespace atelier::cli {

flags::CommandSpec check_plugin_command() {
  flags::CommandSpec command{"check-plugin",
                             "Runs the conformance suite on a plugin, in a process of its own."};
  command.flags = {
      model::plugin_path_flag(),
      {.name = "device",
       .help =
           "where models compute: cpu, cuda or cuda:N; by default cpu, and for images of a real "
           "model a GPU that is there"},
      {.name = "json",
       .kind = flags::FlagKind::kFlag,
       .help = "one JSON object a check",
       .preset = "false"},
      {.name = "timeout",
       .kind = flags::FlagKind::kReal,
       .help = "seconds for the whole suite",
       .preset = "900"},
      {.name = "in_process",
       .kind = flags::FlagKind::kFlag,
       .help = "run the suite in this process, for debuggers",
       .preset = "false"},
  };
  const std::string group = "a real model";
  command.flags.insert(
      command.flags.end(),
      {{.name = "model_paths",
        .help = "its files, as for generate: checks images that it draws, or --reference",
        .value_name = "FILE|FOLDER",
        .group = group},
       {.name = "reference",
        .help = "tensors of another implementation for one component of --model_paths, which is "
                "compared in the place of images; may be repeated",
        .repeated = true,
        .value_name = "FILE",
        .group = group},
       {.name = "tolerance",
        .kind = flags::FlagKind::kReal,
        .help = "of --reference: the largest difference, in parts of the largest value",
        .preset = "1e-4",
        .group = group},
       {.name = "tokenizer_path",
        .help = "folder or file of the tokenizer",
        .value_name = "FILE|FOLDER",
        .group = group},
       {.name = "prompt", .help = "of a few images", .preset = "a red circle", .group = group},
       {.name = "other_prompt",
        .help = "of an image that looks different",
        .preset = "a blue square",
        .group = group},
       {.name = "height",
        .kind = flags::FlagKind::kInteger,
        .help = "pixels; by default what the model is for",
        .group = group},
       {.name = "width",
        .kind = flags::FlagKind::kInteger,
        .help = "pixels; by default what the model is for",
        .group = group},
       {.name = "num_inference_steps",
        .kind = flags::FlagKind::kInteger,
        .help = "of the schedule when absent",
        .group = group}});
  command.positional = "FAMILY|FILE";
  command.min_positional = 1;
  command.max_positional = 1;
  return command;
}

namespace {

void print(const conformance::Finding& finding, bool as_json) {
  if (as_json) {
    const nlohmann::ordered_json line = {
        {"check", finding.check}, {"passed", finding.passed}, {"detail", finding.detail}};
    std::printf("%s\n", report::printable_json(
                            line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))
                            .c_str());
  } else {
    std::printf("%s  %s%s%s\n", finding.passed ? "passed" : "FAILED",
                report::printable(finding.check).c_str(), finding.detail.empty() ? "" : ": ",
                report::printable(finding.detail).c_str());
  }
  std::fflush(stdout);
}

// What a function may take that computes with tiny parts.
constexpr std::chrono::seconds kTinyTime(60);

// Written behind the last check: a plugin may end the process with a code that looks like success.
constexpr const char* kDone = "{\"done\":true}";

model::LoadOptions load_options(const flags::ParsedFlags& flags) {
  model::LoadOptions options;
  options.model_paths = flags.text("model_paths");
  options.device = flags.find_text("device").value_or("auto");
  options.tokenizer_path = flags.find_text("tokenizer_path").value_or("");
  return options;
}

// Reads the files of --reference. Throws Error where there is no model for them.
std::vector<conformance::Reference> read_references(const flags::ParsedFlags& flags) {
  std::vector<conformance::Reference> references;
  for (const std::string& path : flags.texts("reference"))
    references.push_back(conformance::Reference::read(path));
  if (!references.empty() && !flags.find_text("model_paths"))
    throw Error(ErrorCode::kInvalidArgument, "--reference is given without a model",
                "pass the component's files with --model_paths");
  return references;
}

void check_references(const ModelFamily& family, const flags::ParsedFlags& flags,
                      const std::vector<conformance::Reference>& references,
                      const std::function<void(const conformance::Finding&)>& add) {
  model::LoadOptions options = load_options(flags);
  options.dtype = "float32";
  for (const conformance::Reference& reference : references) {
    options.components = {reference.component};
    try {
      const auto model = model::LoadedModel::open(family, options);
      conformance::check_reference(*model, reference, flags.real("tolerance"), add);
    } catch (const Error& error) {
      add({"reference: " + reference.component + " opens", false, error.message()});
    }
  }
}

// The suite itself, here.
int run_suite(const std::string& name, const flags::ParsedFlags& flags) {
  const std::vector<conformance::Reference> references = read_references(flags);
  const plugins::Plugin& plugin = plugins::open_plugin(name, flags.text("plugin_path"));
  bool passed = true;
  const auto add = [&](const conformance::Finding& finding) {
    passed = passed && finding.passed;
    print(finding, /*as_json=*/true);
  };
  conformance::check_door(plugin, add);
  plugins::limit_computing(kTinyTime);
  const at::Device device = device::choose(flags.find_text("device").value_or("cpu"));
  // What differs is the plugin's doing then, where LibTorch has operators that repeat.
  if (device.is_cuda()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  conformance::check_family(*plugin.family, add, device);
  plugins::limit_computing({});
  if (!references.empty()) {
    check_references(*plugin.family, flags, references, add);
  } else if (const auto paths = flags.find_text("model_paths")) {
    const auto model = model::LoadedModel::open(*plugin.family, load_options(flags));
    conformance::ImageOptions options = {.prompt = flags.text("prompt"),
                                         .other_prompt = flags.text("other_prompt"),
                                         .height = flags.find_integer("height"),
                                         .width = flags.find_integer("width"),
                                         .num_steps = flags.find_integer("num_inference_steps")};
    conformance::check_images(*model, options, add);
  }
  std::puts(kDone);
  return passed ? 0 : 3;
}

void on_deadline(int) {
  static constexpr char kLine[] =
      "error: the suite did not end within --timeout [PLUGIN_DAMAGED]\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(3);
}

// The suite here, and no longer than a little over --timeout: who runs it in a process of its own
// stops it before.
int run_in_process(const std::string& name, const flags::ParsedFlags& flags) {
  signal(SIGALRM, on_deadline);
  alarm(static_cast<unsigned>(std::clamp(flags.real("timeout"), 0.0, 1e9)) + 2);
  const int code = run_suite(name, flags);
  alarm(0);
  return code;
}

// What is counted of a suite in a process of its own.
struct Tally {
  int passed = 0, failed = 0;
  bool is_done = false;
  bool as_json = false;
  std::string last = {};  // check that came to its end

  void add(const conformance::Finding& finding) {
    ++(finding.passed ? passed : failed);
    last = finding.check;
    print(finding, as_json);
  }

  // Where the process was when it ended.
  std::string behind_last() const {
    return last.empty() ? ", before the first check" : ", in the check behind '" + last + "'";
  }

  void read(const std::string& line) {
    if (line == kDone) {
      is_done = true;
      return;
    }
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("check")) {
      std::fprintf(stderr, "%s\n",
                   report::printable(line).c_str());  // what the plugin itself wrote
      return;
    }
    add({json["check"].get<std::string>(), json["passed"].get<bool>(),
         json["detail"].get<std::string>()});
  }

  // Adds a finding where the process ended otherwise than by coming to its end. `status`: of
  // waitpid(); nullopt: it was stopped after `timeout` seconds.
  void judge(const std::optional<int>& status, const std::string& timeout) {
    if (!status) {
      add({"process: ends in time", false,
           "stopped after " + timeout + " seconds" + behind_last()});
    } else if (WIFSIGNALED(*status)) {
      add({"process: does not crash", false,
           std::string("the suite ended by signal: ") + strsignal(WTERMSIG(*status)) +
               behind_last()});
    } else if (WEXITSTATUS(*status) != 0 && (WEXITSTATUS(*status) != 3 || failed == 0)) {
      add({"process: ends by itself", false, "exit code " + std::to_string(WEXITSTATUS(*status))});
    } else if (!is_done) {
      add({"process: comes to its end", false,
           "something ended it before, with exit code " + std::to_string(WEXITSTATUS(*status))});
    }
  }
};

}  // namespace

int run_check_plugin(std::span<const std::string> arguments) {
  const flags::CommandSpec command = check_plugin_command();
  if (flags::wants_help(arguments)) return print_help(command);
  const flags::ParsedFlags flags = flags::parse_flags(command, arguments);
  const std::string& name = flags.positional().front();
  if (!(flags.real("timeout") > 0))
    throw Error(ErrorCode::kInvalidArgument,
                "--timeout " + flags.text("timeout") + ": seconds above 0 are expected",
                "leave it out for a quarter of an hour");
  if (flags.flag("in_process")) return run_in_process(name, flags);

  read_references(flags);  // mistakes are told before a process is started
  // A plugin that must not be opened is refused here, with the loader's own words.
  if (name.find('/') != std::string::npos || name.ends_with(".so")) {
    const plugins::PluginFile file = plugins::describe_plugin(name);
    if (!file.problem.empty()) plugins::open_plugin(name, flags.text("plugin_path"));
  }

  std::vector<std::string> words = {"check-plugin", "--in_process"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  Tally tally{.as_json = flags.flag("json")};
  const std::optional<int> status =
      follow(start_program(words), Limit::kWhole, flags.real("timeout"),
             [&](const std::string& line) { tally.read(line); });
  conformance::remove_abandoned_scratch();
  tally.judge(status, flags.text("timeout"));
  if (!tally.as_json) std::printf("%d checks passed, %d failed\n", tally.passed, tally.failed);
  return tally.failed == 0 ? 0 : 3;
}

}  // namespace atelier::cli
