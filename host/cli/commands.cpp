#include "host/cli/commands.h"

#include <cstdio>

#include "host/order/generation.h"
#include "host/order/serving.h"
#include "host/order/training.h"
#include "host/report/error_line.h"

namespace atelier::cli {
namespace {

constexpr Command kCommands[] = {
    {"generate", "make images from prompts", run_generate, true},
    {"serve", "serve a model over HTTP, with LoRAs that come and go", run_serve, true},
    {"train", "train a LoRA or a model", run_train, true},
    {"cache", "encode the samples of a training run ahead", run_cache, true},
    {"plan", "say what a run holds where and how long it takes, without running it", run_plan,
     true},
    {"launch", "start processes of one run on this machine", run_launch, false},
    {"inspect", "say what a file is and which family takes it", run_inspect, false},
    {"lora", "LoRA files: info, convert, merge, extract", run_lora, false},
    {"plugins", "list the families found, or show one", run_plugins, false},
    {"plugin", "begin, build and test a plugin of your own", run_plugin, false},
    {"probe", "run one component on tensors from a file", run_probe, true},
    {"check-plugin", "run the conformance suite on a plugin", run_check_plugin, false},
    {"doctor", "say what works on this machine, what does not and why", run_doctor, true},
    {"tune", "prove kernels of our own on this machine's GPUs, and use those that are faster",
     run_tune, true},
    {"completion", "print what makes a shell complete these commands", run_completion, false},
};

}  // namespace

std::span<const Command> commands() {
  return kCommands;
}

int print_help(const flags::CommandSpec& command) {
  std::fputs(report::printable(flags::help_text(command)).c_str(), stdout);
  return 0;
}

flags::CommandSpec train_command(const ModelFamily* family) {
  return order::train_command(family);
}

flags::CommandSpec cache_command(const ModelFamily* family) {
  return order::train_command(family, "cache");
}

std::vector<flags::CommandSpec> command_specs(const ModelFamily* family) {
  std::vector<flags::CommandSpec> specs = {order::generate_command(family),
                                           order::serve_command(family), train_command(family),
                                           cache_command(family)};
  const auto add = [&](std::vector<flags::CommandSpec> more) {
    for (flags::CommandSpec& spec : more) specs.push_back(std::move(spec));
  };
  add(plan_commands(family));
  add({launch_command(), inspect_command()});
  add(lora_commands());
  add({plugins_command()});
  add(plugin_commands());
  add({probe_command(), check_plugin_command(), doctor_command(), tune_command(),
       completion_command()});
  return specs;
}

}  // namespace atelier::cli
