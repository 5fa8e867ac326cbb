// atelier launch: starts several processes of one run on this machine.
#include "host/distributed/launch.h"

#include <algorithm>
#include <cstdio>

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/device/cuda.h"
#include "host/files/file_reader.h"
#include "host/flags/launcher_file.h"
#include "host/flags/table.h"
#include "host/foreign/compat_line.h"
#include "host/report/error_line.h"

namespace atelier::cli {
namespace {

constexpr int kMostProcesses = 1024;

struct Options {
  distributed::LaunchOptions plan;
  std::string nproc_per_node = "auto";
  std::string config_file;
};

flags::Table table_of(Options& options) {
  flags::Table table;
  table
      .text("nproc_per_node", options.nproc_per_node,
            "processes on this machine; auto: one for each GPU", "N|auto")
      .number("nnodes", options.plan.nnodes, "machines of the run", flags::at_least(1))
      .number("node_rank", options.plan.node_rank, "which of them this is, from 0",
              flags::at_least(0))
      .text("master_addr", options.plan.master_addr, "the host of the first machine", "HOST")
      .number("master_port", options.plan.master_port,
              "the TCP port where the processes meet; 0: a free one, on one machine alone",
              flags::between(0, 65535))
      .text("config_file", options.config_file,
            "reads what accelerate's YAML or DeepSpeed's JSON says; flags that are given win",
            "FILE");
  return table;
}

// What Kubeflow's PyTorchJob sets in a pod stands for flags that are not given.
std::vector<flags::GivenValue> given_by_pod() {
  std::vector<flags::GivenValue> values;
  const distributed::Environment environment = distributed::process_environment();
  for (const auto& [variable, flag] :
       {std::pair("PET_NPROC_PER_NODE", "nproc_per_node"), std::pair("PET_NNODES", "nnodes"),
        std::pair("PET_NODE_RANK", "node_rank"), std::pair("PET_MASTER_ADDR", "master_addr"),
        std::pair("PET_MASTER_PORT", "master_port")}) {
    if (const auto text = environment(variable)) values.push_back({flag, *text, variable});
  }
  return values;
}

int processes_of(const std::string& text, report::Problems& problems) {
  if (text == "auto" || text == "gpu") {  // the second is torchrun's word
    const int gpus = device::open_cuda().device_count;
    if (gpus == 0)
      problems.add("--nproc_per_node " + text + ": this machine has no GPU that can be used",
                   "--nproc_per_node 2");
    return gpus;
  }
  const auto count = report::parse_number<int>(text);
  if (!count || *count < 1 || *count > kMostProcesses)
    problems.add("--nproc_per_node " + formats::quote_and_escape(text) +
                 " is neither auto nor a whole number from 1 to " + std::to_string(kMostProcesses));
  return count.value_or(1);
}

bool is_given(std::span<const std::string> words, const std::string& name) {
  return std::ranges::any_of(words, [&](const std::string& word) {
    return word == "--" + name || word.starts_with("--" + name + "=");
  });
}

bool is_training(std::span<const std::string> words) {
  return !words.empty() && words.front() == "train";
}

bool plans_training(std::span<const std::string> words) {
  return words.size() > 1 && words.front() == "plan" && is_training(words.subspan(1));
}

// Plans here, once, what all processes would do.
int plan_launch(std::vector<std::string> words, const distributed::LaunchOptions& plan) {
  const int ranks = plan.nproc_per_node * plan.nnodes;
  if (ranks > 1 && !is_given(words, "ranks"))
    words.insert(words.end(), {"--ranks", std::to_string(ranks)});
  return run_plan(std::span<const std::string>(words).subspan(1));
}

// What the file of --config_file says stands for flags that are given nowhere else: of `launch`, in
// `given`, and of `train`, behind the words of `command`.
void take_file(const std::string& path, std::vector<flags::GivenValue>& given,
               std::vector<std::string>& command, report::Problems& problems) {
  const flags::LauncherFile file = flags::read_launcher_file(path, problems);
  std::string said;
  for (const auto& [name, value] : file.launch) {
    if (std::ranges::find(given, name, &flags::GivenValue::name) == given.end())
      given.push_back({name, value, path + ": " + name});
    said += " --" + name + " " + value;
  }
  if (!file.train.empty()) said += " -- train";
  for (const auto& [name, value] : file.train) {
    said += " --" + name + (value == "true" ? "" : " " + value);
    if (is_given(command, name)) continue;
    command.push_back("--" + name);
    if (value != "true") command.push_back(value);
  }
  std::fprintf(stderr, "note: %s is%s here\n", files::display_path(path).c_str(),
               report::printable(said).c_str());
  for (const std::string& note : file.notes)
    std::fprintf(stderr, "note: %s\n", report::printable(note).c_str());
  if (!is_training(command) && !plans_training(command))
    problems.add("--config_file is about atelier train",
                 "atelier launch --config_file FILE -- train …");
}

bool is_launched(const std::string& word) {
  return word != "launch" && std::ranges::any_of(commands(), [&](const Command& command) {
           return command.name == word;
         });
}

// A command that stands among the flags of `launch`: what follows is meant for it.
void refuse_command(std::span<const std::string> own) {
  const flags::CommandSpec launch = launch_command();
  size_t at = 0;
  while (at < own.size() && own[at].starts_with("--")) {
    const bool takes_next = flags::find_flag(launch, own[at].substr(2)) != nullptr;
    at += takes_next ? 2 : 1;
  }
  if (at >= own.size() || !is_launched(own[at])) return;
  std::string line = "atelier launch";
  for (const std::string& word : own.first(at)) line += " " + word;
  throw Error(ErrorCode::kInvalidArgument, "-- is missing before " + own[at],
              report::printable(line) + " -- " + own[at] + " …");
}

// What each process runs: this very program with the words behind "--".
std::vector<std::string> command_of(std::span<const std::string> words,
                                    report::Problems& problems) {
  if (words.empty() || !is_launched(words.front()))
    problems.add(words.empty() ? "nothing stands behind --"
                               : formats::quote_and_escape(words.front()) + " cannot be launched",
                 "atelier launch --nproc_per_node 8 -- train …");
  std::vector<std::string> command = {"/proc/self/exe"};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

// Each of several machines has to be told which one it is, and where the first one is.
void check_machines(const distributed::LaunchOptions& plan, const flags::ParsedFlags& given,
                    report::Problems& problems) {
  if (plan.node_rank >= plan.nnodes)
    problems.add("--node_rank " + std::to_string(plan.node_rank) + " of --nnodes " +
                     std::to_string(plan.nnodes),
                 "machines count from 0");
  if (plan.nnodes == 1) return;
  std::string missing;
  for (const char* flag : {"node_rank", "master_addr", "master_port"}) {
    if (given.is_given(flag) && (flag != std::string_view("master_port") || plan.master_port != 0))
      continue;
    missing += (missing.empty() ? "--" : ", --") + std::string(flag);
  }
  if (!missing.empty())
    problems.add("--nnodes " + std::to_string(plan.nnodes) + " needs " + missing,
                 "on each machine: --node_rank 0, 1, … --master_addr HOST --master_port 29500, the "
                 "host of --node_rank 0 and a port of it");
}

}  // namespace

flags::CommandSpec launch_command() {
  Options options;
  return {.name = "launch",
          .summary = "Starts processes of one run on this machine: launch … -- train …",
          .flags = table_of(options).specs()};
}

int run_launch(std::span<const std::string> arguments) {
  if (foreign::is_compat_line(arguments)) return launch_compat_line(arguments);
  const auto dashes = std::ranges::find(arguments, "--");
  const std::span<const std::string> own(arguments.begin(), dashes);
  if (flags::wants_help(own)) return print_help(launch_command());
  refuse_command(own);
  std::vector<std::string> words(dashes == arguments.end() ? dashes : std::next(dashes),
                                 arguments.end());
  report::Problems problems;
  Options options;
  std::vector<flags::GivenValue> given = given_by_pod();
  if (const auto path = flags::peek_flag(own, "config_file"))
    take_file(*path, given, words, problems);
  const flags::Table table = table_of(options);
  const flags::ParsedFlags parsed = flags::parse_flags(launch_command(), own, given, problems);
  table.read(parsed, problems);
  options.plan.nproc_per_node = processes_of(options.nproc_per_node, problems);
  if (plans_training(words)) {
    problems.throw_if_any();
    return plan_launch(std::move(words), options.plan);
  }
  check_machines(options.plan, parsed, problems);
  options.plan.command = command_of(words, problems);
  problems.throw_if_any();
  return distributed::launch(options.plan);
}

}  // namespace atelier::cli
