#include "host/cli/child.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "atelier/error.h"

namespace atelier::cli {

Child start_program(std::span<const std::string> arguments) {
  int ends[2];
  if (pipe(ends) != 0)
    throw Error(ErrorCode::kEnvironment, std::string("pipe: ") + std::strerror(errno));
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error(ErrorCode::kEnvironment, std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever follows it is its only end, where it hangs
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    std::vector<std::string> words = {"atelier"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv("/proc/self/exe", pointers.data());
    _exit(127);
  }
  close(ends[1]);
  return {child, ends[0]};
}

namespace {

int wait_for(pid_t process) {
  int status = 0;
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

std::optional<int> follow(Child child, Limit limit, double timeout_s,
                          const std::function<void(const std::string& line)>& on_line) {
  using Clock = std::chrono::steady_clock;
  const auto allowed = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::clamp(timeout_s, 0.0, 1e9)));
  auto deadline = Clock::now() + allowed;
  std::string pending;
  bool is_open = true;
  while (is_open) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      kill(child.process, SIGKILL);
      wait_for(child.process);
      close(child.output);
      return std::nullopt;
    }
    pollfd waiting{child.output, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(std::min<int64_t>(left.count(), 1000))) <= 0) continue;
    char buffer[4096];
    const ssize_t got = read(child.output, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    is_open = got > 0;
    if (got > 0) pending.append(buffer, static_cast<size_t>(got));
    for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      on_line(pending.substr(0, end));
      pending.erase(0, end + 1);
      if (limit == Limit::kEachLine) deadline = Clock::now() + allowed;
    }
  }
  close(child.output);
  return wait_for(child.process);
}

}  // namespace atelier::cli
