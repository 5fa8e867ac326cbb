#include "host/distributed/launch.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <netinet/in.h>
#include <optional>
#include <span>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "atelier/error.h"

#include "formats/escape.h"
#include "host/report/say_once.h"

namespace atelier::distributed {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPeerLostCode = 6;
constexpr int kStoppedCode = 75;  // of a process that was asked to stop, and has saved its state
// Time that others have after one has failed: longer than Peers take to say who is lost and to end
// a process that is held up.
constexpr auto kGrace = std::chrono::seconds(4);
// Time after one has left because of a signal that the others may not have got: as a rule all
// of them have agreed on it and are about to end.
constexpr auto kStopGrace = std::chrono::seconds(30);
constexpr auto kChildrenLook = std::chrono::milliseconds(200);
constexpr std::array kPassedOn = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
constexpr std::array kAskingToStop = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};
constexpr int kNotFoundCode = 127;  // of a child whose program does not start

Error system_error(const std::string& what) {
  return Error(ErrorCode::kEnvironment, "launch: " + what + ": " + std::strerror(errno));
}

// A TCP port that no other program is given for as long as this lives. Rank 0 can listen at it, as
// stores bind with SO_REUSEADDR, too, and nothing listens here.
class ReservedPort {
 public:
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (socket_ < 0) throw system_error("socket");
    const int yes = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in place = {};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(place);
    auto* const address = reinterpret_cast<sockaddr*>(&place);
    const bool works =
        bind(socket_, address, size) == 0 && getsockname(socket_, address, &size) == 0;
    if (!works) {
      const Error error = system_error("no free port");
      close(socket_);
      throw error;
    }
    port_ = ntohs(place.sin_port);
  }
  ~ReservedPort() { close(socket_); }
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  int port() const { return port_; }

 private:
  int socket_, port_ = 0;
};

// The signals that are passed on, and those of ended children, come in through a descriptor while
// one lives.
class SignalQueue {
 public:
  SignalQueue() {
    sigemptyset(&mask_);
    for (const int signal : kPassedOn) {
      struct sigaction action = {};
      sigaction(signal, nullptr, &action);
      if (action.sa_handler != SIG_IGN) sigaddset(&mask_, signal);  // as nohup leaves SIGHUP
    }
    sigaddset(&mask_, SIGCHLD);
    sigprocmask(SIG_BLOCK, &mask_, &before_);
  }
  ~SignalQueue() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  // The next signal; nullopt after `limit`.
  std::optional<int> next(std::chrono::milliseconds limit) const {
    const timespec time = {limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    const int signal = sigtimedwait(&mask_, nullptr, &time);
    return signal < 0 ? std::nullopt : std::optional(signal);
  }
  // For a child before its program starts.
  void restore() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t mask_, before_;
};

struct Child {
  int rank = 0;
  pid_t process = -1;  // -1: it has ended
};

// What all processes have beside their numbers: where they meet, and what one has said for all.
struct Shared {
  int port = 0;
  report::SharedMessages messages = {};
};

// What a child's environment has beside that of this process.
void set_environment(const LaunchOptions& plan, int local_rank, const Shared& shared) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  };
  set("RANK", std::to_string(plan.node_rank * plan.nproc_per_node + local_rank));
  set("WORLD_SIZE", std::to_string(plan.nnodes * plan.nproc_per_node));
  set("LOCAL_RANK", std::to_string(local_rank));
  set("LOCAL_WORLD_SIZE", std::to_string(plan.nproc_per_node));
  set("MASTER_ADDR", plan.master_addr);
  set("MASTER_PORT", std::to_string(shared.port));
  set(report::SharedMessages::kVariable, shared.messages.value());
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  setenv("OMP_NUM_THREADS", std::to_string(std::max(1, cores / plan.nproc_per_node)).c_str(),
         /*overwrite=*/0);
}

// In the child: becomes the program. Its group is its own, so that what it starts ends with it.
[[noreturn]] void become(const LaunchOptions& plan, const std::vector<char*>& words, int local_rank,
                         const Shared& shared, pid_t parent, const SignalQueue& signals) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kPeerLostCode);  // it ended before this was asked for
  set_environment(plan, local_rank, shared);
  signals.restore();
  execvp(words.front(), words.data());
  _exit(kNotFoundCode);
}

std::vector<Child> start(const LaunchOptions& plan, const Shared& shared,
                         const SignalQueue& signals) {
  std::vector<char*> words;
  for (const std::string& word : plan.command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = getpid();
  std::vector<Child> children;
  for (int i = 0; i < plan.nproc_per_node; ++i) {
    const pid_t process = fork();
    if (process == 0) become(plan, words, i, shared, parent, signals);
    if (process < 0) {
      const Error error = system_error("process " + std::to_string(i) + " cannot be started");
      for (const Child& child : children) kill(child.process, SIGKILL);
      throw error;
    }
    children.push_back({plan.node_rank * plan.nproc_per_node + i, process});
  }
  return children;
}

void send(const std::vector<Child>& children, int signal, bool to_groups) {
  for (const Child& child : children) {
    if (child.process > 0) kill(to_groups ? -child.process : child.process, signal);
  }
}

bool any_runs(const std::vector<Child>& children) {
  return std::ranges::any_of(children, [](const Child& child) { return child.process > 0; });
}

// How a process that did not end well did end.
struct Failure {
  int rank = 0, status = 0;  // that of waitpid()
  Clock::time_point at = {};
};

// Which of several failures leads: an error of its own, then a signal that ended a process, then
// the loss of another one.
int weight_of(const Failure& failure) {
  if (WIFSIGNALED(failure.status)) return 1;
  return WEXITSTATUS(failure.status) == kPeerLostCode ? 2 : 0;
}

bool contains(std::span<const int> signals, int signal) {
  return std::ranges::find(signals, signal) != signals.end();
}

// 128 + N of a process that was ended by a signal N that asks to stop: before it could see to it.
int code_of(const Failure& failure) {
  if (!WIFSIGNALED(failure.status)) return WEXITSTATUS(failure.status);
  const int signal = WTERMSIG(failure.status);
  return contains(kAskingToStop, signal) ? 128 + signal : kPeerLostCode;
}

// Whether a process that was asked to end has done so.
bool is_stop(int code) {
  return code == kStoppedCode || code > 128;
}

// How long the others have to end by themselves then; none where all have got the same signal.
std::optional<Clock::duration> grace_after(const Failure& failure,
                                           const std::vector<int>& passed_on) {
  if (!is_stop(code_of(failure))) return kGrace;
  if (WIFSIGNALED(failure.status) && !contains(passed_on, WTERMSIG(failure.status))) return kGrace;
  if (passed_on.empty()) return kStopGrace;
  return std::nullopt;
}

void tell(const Failure& failure, int code) {
  const std::string name = "rank " + std::to_string(failure.rank);
  if (WIFSIGNALED(failure.status)) {
    const int signal = WTERMSIG(failure.status);
    spdlog::error("launch: {} was ended by signal {} ({}){}{}", name, signal, strsignal(signal),
                  signal == SIGKILL ? "; the machine's memory may be used up" : "",
                  is_stop(code) ? "" : " [PEER_LOST]");
  } else if (code == kNotFoundCode) {
    spdlog::error("launch: the program of {} does not start", name);
  } else {
    spdlog::error("launch: {} failed, with exit code {}", name, code);
  }
}

// Notes the children that have ended, and those of them that failed.
void reap(std::vector<Child>& children, std::vector<Failure>& failures) {
  int status = 0;
  while (true) {
    const pid_t process = waitpid(-1, &status, WNOHANG);
    if (process <= 0) return;
    const auto child = std::ranges::find(children, process, &Child::process);
    if (child == children.end()) continue;
    child->process = -1;
    if (status != 0) failures.push_back({child->rank, status, Clock::now()});
  }
}

}  // namespace

int launch(const LaunchOptions& plan) {
  const SignalQueue signals;
  std::optional<ReservedPort> reserved;
  if (plan.master_port == 0) reserved.emplace();
  const Shared shared{.port = reserved ? reserved->port() : plan.master_port};
  std::vector<Child> children = start(plan, shared, signals);
  std::vector<Failure> failures;
  std::vector<int> passed_on;
  std::optional<Clock::time_point> end;
  while (any_runs(children)) {
    if (const auto signal = signals.next(kChildrenLook); signal && *signal != SIGCHLD) {
      send(children, *signal, /*to_groups=*/false);
      passed_on.push_back(*signal);
    }
    std::vector<Failure> killed;  // by this one, which is no failure of theirs
    reap(children, end && Clock::now() > *end ? killed : failures);
    for (const Failure& failure : failures) {
      if (const auto grace = grace_after(failure, passed_on))
        end = std::min(end.value_or(Clock::time_point::max()), failure.at + *grace);
    }
    if (end && Clock::now() > *end) send(children, SIGKILL, /*to_groups=*/true);
  }
  if (failures.empty()) return 0;
  const Failure& leader = *std::ranges::min_element(failures, {}, weight_of);
  const int code = code_of(leader);
  const bool is_told = is_stop(code) && (!WIFSIGNALED(leader.status) || !passed_on.empty());
  if (!is_told) tell(leader, code);
  return code;
}

}  // namespace atelier::distributed
