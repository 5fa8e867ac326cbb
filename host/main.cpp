// The program: picks a command, and turns what goes wrong into one line and an exit code.
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <new>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <c10/util/Backtrace.h>
#include <c10/util/Exception.h>

#include "atelier/error.h"
#include "atelier/plugin.h"

#include "formats/escape.h"
#include "host/cli/commands.h"
#include "host/device/cpu_memory.h"
#include "host/device/cuda.h"
#include "host/distributed/peers.h"
#include "host/files/mapped_file.h"
#include "host/foreign/compat_line.h"
#include "host/plugins/guard.h"
#include "host/plugins/plugin_call.h"
#include "host/report/error_line.h"
#include "host/report/problems.h"
#include "host/report/say_once.h"

namespace {

using atelier::Error;
using atelier::ErrorCode;

// LibTorch's MKL is set up before main(), and ends a process whose working folder was removed in
// words that do not name it. The program's own preinit functions come before those of libraries.
void check_working_folder() {
  char path[PATH_MAX];
  if (getcwd(path, sizeof(path)) != nullptr || errno != ENOENT) return;
  static constexpr char kLine[] =
      "error: the working folder was removed; go to one that is there [ENVIRONMENT]\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(3);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const kAtStart)() = check_working_folder;

// Lines of the log as they are, without what would steer a terminal.
class PrintableLines : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string line =
        atelier::report::printable({message.payload.data(), message.payload.size()}) + "\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<PrintableLines>();
  }
};

void print_help() {
  std::puts("atelier COMMAND [flags]\nTrains and runs diffusion transformers.\n");
  for (const atelier::cli::Command& command : atelier::cli::commands())
    std::printf("  %-14s %s\n", command.name, command.help);
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
  const std::string where = atelier::plugins::running_call() + plugin;
  std::fputs(atelier::report::error_line(Error(ErrorCode::kEnvironment, where + ": " + what,
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
  if (const std::type_info* type = abi::__cxa_current_exception_type()) {
    if (const auto error = atelier::distributed::Peers::error_of_transport(*type, what)) {
      atelier::report::say_once(atelier::report::error_line(*error));
      std::_Exit(atelier::exit_code(error->code()));
    }
  }
  if (const char* plugin = atelier::plugins::plugin_on_stack())
    end_of_plugin(plugin, "it throws " + what.substr(0, what.find('\n')));
  std::fputs(atelier::report::error_line(
                 Error(ErrorCode::kInternal, what, "this is a bug: please report it"))
                 .c_str(),
             stderr);
  print_stack();
  std::_Exit(70);
}

// While a command runs, exit() is no way to end it: it would look like success.
bool is_running = false;
// The program's exit code, once its work is done.
std::optional<int> final_code;

// Whether a tool of the build reports when the process ends.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kReportsAtExit = true;
#else
constexpr bool kReportsAtExit = false;
#endif

// Called by exit(), behind the handlers of plugins and before those of libraries. A process whose
// work is done ends here: LibTorch would unregister each of its operators, which takes a third of a
// short command's time.
void on_exit_call() {
  if (final_code && !kReportsAtExit) {
    std::fflush(nullptr);
    _exit(*final_code);
  }
  if (!is_running) return;
  const char* plugin = atelier::plugins::plugin_on_stack();
  end_of_plugin(plugin == nullptr ? "a library" : plugin, "it ends the process with exit()");
}

extern "C" void on_interrupt(int) {
  static constexpr char kLine[] = "\nerror: interrupted [CANCELLED]\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(130);
}

// Nobody reads stdout any more, as behind `| head`. The program ends without a word then, with the
// code that shells give a program that SIGPIPE ends; the signal itself would also end a training
// run whose progress on stderr nobody reads.
constexpr int kReaderLeft = 128 + SIGPIPE;

bool has_lost_reader() {
  pollfd out = {STDOUT_FILENO, POLLOUT, 0};
  return poll(&out, 1, /*timeout=*/0) == 1 && (out.revents & POLLERR) != 0;
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
  if (atelier::foreign::is_compat_line(arguments)) return atelier::cli::run_compat_line(arguments);
  std::vector<std::string> names;
  for (const atelier::cli::Command& command : atelier::cli::commands()) {
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

// Streams that the caller has closed: a file that is opened gets the number of one otherwise, and
// what is said goes into it.
void open_closed_streams() {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", O_RDWR);  // takes the lowest free number
  }
}

// Runs the command, and tells what goes wrong. Returns the exit code.
int run_and_report(const std::vector<std::string>& arguments) {
  try {
    const int code = run(arguments);
    const bool is_told = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (!is_told && has_lost_reader()) return kReaderLeft;
    if (!is_told)
      throw Error(ErrorCode::kEnvironment, std::string("stdout: ") + std::strerror(errno),
                  errno == ENOSPC ? "free some space" : "");
    return code;
  } catch (const Error& error) {
    is_running = false;
    std::fflush(stdout);
    if (error.code() == ErrorCode::kEnvironment && std::ferror(stdout) != 0 && has_lost_reader())
      return kReaderLeft;
    atelier::report::say_once(atelier::report::error_line(error));
    const int code = atelier::exit_code(error.code());
    // The one of the throw, where LibTorch took it; this one here would tell nothing.
    const std::string stack = atelier::plugins::last_stack();
    const bool is_wanted = code == 70 || atelier::plugins::are_stacks_wanted();
    if (is_wanted && !stack.empty()) std::fprintf(stderr, "%s\n", stack.c_str());
    return code;
  } catch (const std::bad_alloc&) {
    is_running = false;
    std::fprintf(stderr, "error: the host's memory is used up; %s [OUT_OF_MEMORY]\n",
                 atelier::report::kSmallerHint);
    return 4;
  }
}

}  // namespace

int main(int count, char** values) {
  open_closed_streams();
  atelier::device::keep_freed_memory();
  atelier::files::report_lost_pages();
  std::set_terminate(on_terminate);
  std::atexit(on_exit_call);
  signal(SIGINT, on_interrupt);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // write() says that a file would be too large
  spdlog::set_default_logger(spdlog::stderr_color_mt("atelier"));
  spdlog::set_formatter(std::make_unique<PrintableLines>());
  const std::vector<std::string> arguments(values + std::min(count, 1), values + count);
  final_code = run_and_report(arguments);
  atelier::plugins::watch_exit(*final_code);
  return *final_code;
}
