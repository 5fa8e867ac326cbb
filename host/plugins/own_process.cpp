#include "host/plugins/own_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/util/StringUtil.h>

#include "atelier/error.h"

#include "formats/escape.h"

namespace atelier::plugins {

namespace {

constexpr rlim_t kMostBytes = rlim_t{2} << 30;  // that work in a child may add
constexpr const char* kHint = "build or copy it again";
constexpr const char* kTag = "PLUGIN_DAMAGED";

// How a child's answer begins.
constexpr char kResult = 'R', kError = 'E', kEnd = 'X';

// ---- What would end the process ----

constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};

// What is told and where, before and after the words for the end. One at a time.
struct Watch {
  bool is_on = false;
  int file = STDERR_FILENO;
  std::string before, after;
  std::array<struct sigaction, kCrashes.size()> old_actions;
  stack_t old_stack;
  std::terminate_handler old_terminate = nullptr;
};
Watch& watch() {
  static auto& the_watch = *new Watch;
  return the_watch;
}

void write_all(int file, const char* text, size_t length) {
  while (length > 0) {
    const ssize_t done = write(file, text, length);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    text += done, length -= static_cast<size_t>(done);
  }
}

// Safe in a signal's handler.
[[noreturn]] void tell_end(const char* how) {
  const Watch& w = watch();
  write_all(w.file, w.before.data(), w.before.size());
  write_all(w.file, how, std::strlen(how));
  write_all(w.file, w.after.data(), w.after.size());
  _exit(kBadPlugin);
}

void on_crash(int number) {
  tell_end(words_of_end(number));
}

void on_exit_call() {
  if (watch().is_on) tell_end("it ends the process with exit()");
}

// "it throws ..." of the exception that is being handled.
std::string thrown() {
  std::string what = "an exception that is not a std::exception";
  try {
    throw;
  } catch (const std::exception& error) {
    what = error.what();
    what.erase(std::min(what.find('\n'), what.size()));
    what = formats::quote_and_escape(what, 200);
  } catch (...) {
  }
  return "it throws " + what;
}

[[noreturn]] void on_terminate() {
  tell_end(std::current_exception() ? thrown().c_str() : "it ends the process (std::terminate)");
}

void begin_watch(int file, std::string before, std::string after) {
  static std::array<char, 65536> stack;  // for crashes of a stack that is full
  Watch& w = watch();
  w.file = file, w.before = std::move(before), w.after = std::move(after);
  const stack_t own = {.ss_sp = stack.data(), .ss_flags = 0, .ss_size = stack.size()};
  sigaltstack(&own, &w.old_stack);
  struct sigaction action = {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  for (size_t i = 0; i < kCrashes.size(); ++i) sigaction(kCrashes[i], &action, &w.old_actions[i]);
  w.old_terminate = std::set_terminate(on_terminate);
  w.is_on = true;
  // Once more each time: what was registered last is called first.
  std::atexit(on_exit_call);
  std::at_quick_exit(on_exit_call);
}

void end_watch() {
  Watch& w = watch();
  w.is_on = false;
  std::set_terminate(w.old_terminate);
  for (size_t i = 0; i < kCrashes.size(); ++i) sigaction(kCrashes[i], &w.old_actions[i], nullptr);
  sigaltstack(&w.old_stack, nullptr);
}

// ---- The child ----

// More memory than that is refused there, and takes none from others.
void limit_memory() {
  long pages[6] = {};  // the last: of data
  std::ifstream file("/proc/self/statm");
  for (long& count : pages) file >> count;
  if (!file) return;
  const rlim_t most = static_cast<rlim_t>(pages[5] * sysconf(_SC_PAGESIZE)) + kMostBytes;
  const rlimit limit = {most, most};
  setrlimit(RLIMIT_DATA, &limit);
}

// The parts of an error, each behind a zero.
std::string packed(const Error& error) {
  std::string text(1, kError);
  for (const std::string& part :
       {std::to_string(static_cast<int>(error.code())), error.message(), error.hint(), error.tag()})
    text += part + '\0';
  return text;
}

[[noreturn]] void throw_packed(std::string_view text) {
  std::string parts[4];
  for (std::string& part : parts) {
    const size_t end = std::min(text.find('\0'), text.size());
    part = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  throw Error(static_cast<ErrorCode>(std::atoi(parts[0].c_str())), parts[1], parts[2], parts[3]);
}

[[noreturn]] void work_in_child(int answer, const std::string& place,
                                const std::function<std::string()>& work) {
  for (const int number : {SIGINT, SIGTERM}) signal(number, SIG_DFL);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  limit_memory();
  dup2(STDERR_FILENO, STDOUT_FILENO);
  begin_watch(answer, std::string(1, kEnd), "");
  std::string text;
  try {
    try {
      text = kResult + work();
    } catch (...) {
      rethrow_of_plugin(place);
    }
  } catch (const Error& error) {
    text = packed(error);
  }
  write_all(answer, text.data(), text.size());
  _exit(0);
}

// ---- The parent ----

// Reads what `child` writes until it has ended. Gives its wait status, or nullopt when it was
// stopped at the deadline.
std::optional<int> wait_for(pid_t child, int from, std::chrono::seconds limit, std::string& text) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  const auto drain = [&] {
    char buffer[4096];
    for (ssize_t got; (got = read(from, buffer, sizeof(buffer))) > 0;)
      text.append(buffer, static_cast<size_t>(got));
  };
  fcntl(from, F_SETFL, O_NONBLOCK);
  int status = 0;
  for (int pause_ms = 1;; pause_ms = std::min(pause_ms * 2, 20)) {
    // A process that the plugin left behind may hold the pipe open: the child's end counts.
    if (waitpid(child, &status, WNOHANG) == child) {
      drain();
      return status;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return std::nullopt;
    }
    pollfd waiting{from, POLLIN, 0};
    poll(&waiting, 1, pause_ms);
    if ((waiting.revents & POLLIN) != 0) {
      drain();
    } else if (waiting.revents != 0) {
      usleep(1000);  // closed, and not ended yet
    }
  }
}

Error damaged(const std::string& place, const std::string& what) {
  return Error(ErrorCode::kEnvironment, place + ": " + what, kHint, kTag);
}

}  // namespace

const char* words_of_end(int signal) {
  switch (signal) {
    case SIGSEGV:
      return "it ends the process (Segmentation fault)";
    case SIGBUS:
      return "it ends the process (Bus error)";
    case SIGABRT:
      return "it ends the process (Aborted)";
    case SIGFPE:
      return "it ends the process (Floating point exception)";
    case SIGILL:
      return "it ends the process (Illegal instruction)";
    default:
      return "it ends the process (a timer that it has set)";
  }
}

std::string in_own_process(const std::string& place, std::chrono::seconds limit,
                           const std::function<std::string()>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    throw Error(ErrorCode::kEnvironment, std::string("pipe: ") + std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    work_in_child(ends[1], place, work);
  }
  const int failure = errno;
  close(ends[1]);
  std::string text;
  const std::optional<int> status = child < 0 ? 0 : wait_for(child, ends[0], limit, text);
  close(ends[0]);
  if (child < 0)
    throw Error(ErrorCode::kEnvironment, std::string("fork: ") + std::strerror(failure));
  if (!status) {
    throw damaged(place,
                  "it does not come back within " + std::to_string(limit.count()) + " seconds");
  }
  if (WIFSIGNALED(*status))
    throw damaged(place, std::string("it ends the process (") + strsignal(WTERMSIG(*status)) + ")");
  const char kind = text.empty() ? kEnd : text.front();
  if (text.empty())
    text = " it ends the process with exit code " + std::to_string(WEXITSTATUS(*status));
  text.erase(0, 1);
  if (kind == kError) throw_packed(text);
  if (kind == kEnd) throw damaged(place, text);
  return text;
}

bool is_watched() {
  return watch().is_on;
}

EndWatch::EndWatch(const std::string& place) : is_outer_(!watch().is_on) {
  if (is_outer_)
    begin_watch(STDERR_FILENO, "error: " + place + ": ", c10::str("; ", kHint, " [", kTag, "]\n"));
}

EndWatch::~EndWatch() {
  if (is_outer_) end_watch();
}

void rethrow_of_plugin(const std::string& place) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw Error(ErrorCode::kEnvironment, place + ": " + thrown(), "ask its author",
                "PLUGIN_THROWS");
  }
}

}  // namespace atelier::plugins
