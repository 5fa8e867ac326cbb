// The program: picks a command, and turns what goes wrong into one line and an exit code.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <c10/util/Backtrace.h>
#include <c10/util/Exception.h>

#include "atelier/error.h"
#include "atelier/plugin.h"

#include "formats/escape.h"
#include "host/checkpoint/mapped_file.h"
#include "host/cli/error_line.h"
#include "host/cli/flags.h"
#include "host/device/cpu_memory.h"
#include "host/device/cuda.h"
#include "host/plugins/guard.h"
#include "host/plugins/plugin_loader.h"
#include "host/report/problems.h"

namespace {

using atelier::Error;
using atelier::ErrorCode;

struct Command {
  const char* name;
  const char* help;
  int (*run)(std::span<const std::string>);
  bool opens_cuda;
};

constexpr Command kCommands[] = {
    {"generate", "make pictures from prompts", atelier::cli::run_generate, true},
    {"train", "train a LoRA or a model", atelier::cli::run_train, true},
    {"cache", "encode the samples of a training run ahead", atelier::cli::run_cache, true},
    {"plan", "say what a run holds where and how long it takes, without running it",
     atelier::cli::run_plan, true},
    {"inspect", "say what a file is and which family takes it", atelier::cli::run_inspect, false},
    {"lora", "LoRA files: info, convert, merge, extract", atelier::cli::run_lora, false},
    {"plugins", "list the families found, or show one", atelier::cli::run_plugins, false},
    {"probe", "run one component on tensors from a file", atelier::cli::run_probe, true},
    {"check-plugin", "run the conformance suite on a plugin", atelier::cli::run_check_plugin,
     false},
    {"doctor", "say what works on this machine, what does not and why", atelier::cli::run_doctor,
     true},
};

void print_help() {
  std::puts("atelier COMMAND [flags]\nTrains and runs diffusion transformers.\n");
  for (const Command& command : kCommands) std::printf("  %-14s %s\n", command.name, command.help);
  std::puts("\natelier COMMAND --help lists its flags; atelier --version says what this is.");
}

void print_stack() {
  std::fprintf(stderr, "%s\n",
               c10::get_backtrace(/*frames_to_skip=*/1, /*maximum_number_of_frames=*/64,
                                  /*skip_python_frames=*/true)
                   .c_str());
}

// What a plugin does to the process, on whose stack that is seen.
[[noreturn]] void end_of_plugin(const std::string& plugin, const std::string& what) {
  std::fputs(atelier::cli::error_line(Error(ErrorCode::kEnvironment, plugin + ": " + what,
                                            "ask its author", "PLUGIN_THROWS"))
                 .c_str(),
             stderr);
  std::_Exit(atelier::exit_code(ErrorCode::kEnvironment));
}

// Reached with the stack of the throw still there: nothing above catches what is no Error.
[[noreturn]] void on_terminate() {
  std::string what = "the program ended itself";
  try {
    if (std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {
    what = "an exception that is not a std::exception";
  }
  if (const std::string plugin = atelier::plugins::plugin_on_stack(); !plugin.empty())
    end_of_plugin(plugin, "it throws " + what.substr(0, what.find('\n')));
  std::fputs(
      atelier::cli::error_line(Error(ErrorCode::kInternal, what, "this is a bug: please report it"))
          .c_str(),
      stderr);
  print_stack();
  std::_Exit(70);
}

// While a command runs, exit() is no way to end it: it would look like success.
bool is_running = false;
void on_exit_call() {
  if (!is_running) return;
  const std::string plugin = atelier::plugins::plugin_on_stack();
  end_of_plugin(plugin.empty() ? "a library" : plugin, "it ends the process with exit()");
}

extern "C" void on_interrupt(int) {
  static constexpr char kLine[] = "\nerror: interrupted [CANCELLED]\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(130);
}

int run(std::span<const std::string> arguments) {
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h" ||
      arguments.front() == "help") {
    print_help();
    return arguments.empty() ? 2 : 0;
  }
  if (arguments.front() == "--version") {
    std::printf("atelier %s\n%s\n", ATELIER_SDK_VERSION, ATELIER_ABI);
    return 0;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (arguments.front() == command.name) {
      if (command.opens_cuda) atelier::device::open_cuda();
      is_running = true;
      const int code = command.run(arguments.subspan(1));
      is_running = false;
      return code;
    }
    names.emplace_back(command.name);
  }
  const std::string nearest = atelier::report::nearest_name(arguments.front(), names);
  throw Error(ErrorCode::kInvalidArgument,
              atelier::formats::quote_and_escape(arguments.front()) + " is no command",
              nearest.empty() ? "atelier --help lists them" : "did you mean " + nearest + "?");
}

}  // namespace

int main(int count, char** values) {
  atelier::device::keep_freed_memory();
  atelier::checkpoint::report_lost_pages();
  std::set_terminate(on_terminate);
  std::atexit(on_exit_call);
  signal(SIGINT, on_interrupt);
  signal(SIGPIPE, SIG_IGN);
  spdlog::set_default_logger(spdlog::stderr_color_mt("atelier"));
  spdlog::set_pattern("%v");
  const std::vector<std::string> arguments(values + std::min(count, 1), values + count);
  try {
    const int code = run(arguments);
    if (std::fflush(stdout) != 0)
      throw Error(ErrorCode::kEnvironment, std::string("stdout: ") + std::strerror(errno),
                  errno == ENOSPC ? "free some space" : "");
    return code;
  } catch (const Error& error) {
    is_running = false;
    std::fflush(stdout);
    std::fputs(atelier::cli::error_line(error).c_str(), stderr);
    const int code = atelier::exit_code(error.code());
    // The one of the throw, where LibTorch took it; this one here would tell nothing.
    const std::string stack = atelier::plugins::last_internal_stack();
    if (code == 70 && !stack.empty()) std::fprintf(stderr, "%s\n", stack.c_str());
    return code;
  } catch (const std::bad_alloc&) {
    is_running = false;
    std::fputs("error: the host's memory is used up; use a smaller size or batch [OUT_OF_MEMORY]\n",
               stderr);
    return 4;
  }
}
