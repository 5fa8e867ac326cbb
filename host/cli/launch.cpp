// atelier launch: starts several processes of one run on this machine.
#include <algorithm>

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/device/cuda.h"
#include "host/distributed/launch.h"
#include "host/flags/table.h"

namespace atelier::cli {
namespace {

constexpr int kMostProcesses = 1024;

struct Options {
  distributed::LaunchPlan plan;
  std::string nproc_per_node = "auto";
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
              flags::between(0, 65535));
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
  if (text == "auto") {
    const int gpus = device::open_cuda().device_count;
    if (gpus == 0)
      problems.add("--nproc_per_node auto: this machine has no GPU that can be used",
                   "--nproc_per_node 2");
    return gpus;
  }
  const auto count = report::parse_number<int>(text);
  if (!count || *count < 1 || *count > kMostProcesses)
    problems.add("--nproc_per_node " + formats::quote_and_escape(text) +
                 " is neither auto nor a whole number from 1 to " + std::to_string(kMostProcesses));
  return count.value_or(1);
}

// What each process runs: this very program with the words behind "--".
std::vector<std::string> command_of(std::span<const std::string> words,
                                    report::Problems& problems) {
  const bool is_known = !words.empty() && std::ranges::any_of(commands(), [&](const Command& c) {
    return c.name == words.front() && c.name != std::string_view("launch");
  });
  if (!is_known)
    problems.add(words.empty() ? "nothing stands behind --"
                               : formats::quote_and_escape(words.front()) + " cannot be launched",
                 "atelier launch --nproc_per_node 8 -- train …");
  std::vector<std::string> command = {"/proc/self/exe"};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

void check_machines(const distributed::LaunchPlan& plan, report::Problems& problems) {
  if (plan.node_rank >= plan.nnodes)
    problems.add("--node_rank " + std::to_string(plan.node_rank) + " of --nnodes " +
                     std::to_string(plan.nnodes),
                 "machines count from 0");
  if (plan.nnodes > 1 && plan.master_port == 0)
    problems.add("--nnodes " + std::to_string(plan.nnodes) + " needs a port that all machines know",
                 "--master_addr HOST --master_port 29500, the host of --node_rank 0");
}

}  // namespace

flags::CommandSpec launch_command() {
  Options options;
  return {.name = "launch",
          .summary = "Starts processes of one run on this machine: launch … -- train …",
          .flags = table_of(options).specs()};
}

int run_launch(std::span<const std::string> arguments) {
  const auto dashes = std::ranges::find(arguments, "--");
  const std::span<const std::string> own(arguments.begin(), dashes);
  if (flags::wants_help(own)) return print_help(launch_command());
  report::Problems problems;
  Options options;
  const flags::Table table = table_of(options);
  table.read(flags::parse_flags(launch_command(), own, given_by_pod(), problems), problems);
  options.plan.nproc_per_node = processes_of(options.nproc_per_node, problems);
  check_machines(options.plan, problems);
  const bool has_words = dashes != arguments.end();
  options.plan.command = command_of(
      has_words ? std::span(std::next(dashes), arguments.end()) : std::span<const std::string>(),
      problems);
  problems.throw_if_any();
  return distributed::launch(options.plan);
}

}  // namespace atelier::cli
