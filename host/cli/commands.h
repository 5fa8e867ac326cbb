// Every command of the program: what it is called, what it takes, what runs it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "atelier/model_family.h"

#include "host/flags/flags.h"

namespace atelier::cli {

struct Command {
  const char* name;
  const char* help;
  int (*run)(std::span<const std::string>);
  bool opens_cuda;
};

std::span<const Command> commands();

// What they take; with a family, its names and inputs too. Of groups, the commands below them:
// "lora info".
std::vector<flags::CommandSpec> command_specs(const ModelFamily* family);

// What `--help` says of a command. Returns the exit code.
int print_help(const flags::CommandSpec& command);

// What one of them takes.
flags::CommandSpec cache_command(const ModelFamily* family);
flags::CommandSpec check_plugin_command();
flags::CommandSpec completion_command();
flags::CommandSpec doctor_command();
flags::CommandSpec inspect_command();
flags::CommandSpec launch_command();
std::vector<flags::CommandSpec> lora_commands();
std::vector<flags::CommandSpec> plan_commands(const ModelFamily* family);
std::vector<flags::CommandSpec> plugin_commands();
flags::CommandSpec plugins_command();
flags::CommandSpec probe_command();
flags::CommandSpec train_command(const ModelFamily* family);
flags::CommandSpec tune_command();

// The commands. Each gets what follows its name and returns the exit code; mistakes are thrown as
// Error.
int run_inspect(std::span<const std::string> arguments);
int run_plugin(std::span<const std::string> arguments);
int run_plugins(std::span<const std::string> arguments);
int run_probe(std::span<const std::string> arguments);
int run_check_plugin(std::span<const std::string> arguments);
int run_doctor(std::span<const std::string> arguments);
int run_generate(std::span<const std::string> arguments);
int run_launch(std::span<const std::string> arguments);
int run_lora(std::span<const std::string> arguments);
int run_plan(std::span<const std::string> arguments);
int run_serve(std::span<const std::string> arguments);
int run_train(std::span<const std::string> arguments);
int run_tune(std::span<const std::string> arguments);
int run_cache(std::span<const std::string> arguments);
int run_completion(std::span<const std::string> arguments);

// A command line of DiffSynth-Studio or kohya's trainers: prints the one to run instead on stdout,
// and on stderr what became of each word that is not there any more.
int run_compat_line(std::span<const std::string> words);
// Runs it instead, and says all of that on stderr.
int launch_compat_line(std::span<const std::string> words);

}  // namespace atelier::cli
