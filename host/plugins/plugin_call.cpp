#include "host/plugins/plugin_call.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <mutex>
#include <set>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include "atelier/error.h"

#include "host/plugins/own_process.h"
#include "host/report/error_line.h"

namespace atelier::plugins {

namespace {

using std::chrono::milliseconds;

constexpr const char* kAskAuthor = "ask its author";
constexpr milliseconds kFirstNote{60'000};
constexpr int kNoteGrowth = 4;  // how much longer each next note waits

// ---- Who is where ----

// What a thread is in. Its thread alone writes it; handlers and the watch read it at any time.
struct Slot {
  std::atomic<pid_t> thread = 0;   // 0: free
  std::atomic<uint64_t> turn = 0;  // counts what begins and ends: the watch sees that it goes on
  std::atomic<const PluginName*> plugin = nullptr;  // null: in none
  std::atomic<const char*> function = "";           // never null
  std::atomic<CallKind> kind = CallKind::kAnswers;

  void put(const PluginName* new_plugin, const char* new_function, CallKind new_kind) {
    kind.store(new_kind, std::memory_order_relaxed);
    function.store(new_function, std::memory_order_relaxed);
    plugin.store(new_plugin, std::memory_order_relaxed);
    turn.store(turn.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
};

// NOLINTBEGIN(*-non-const-global-variables): a signal handler has no other way to know
std::array<Slot, 256> slots;
constinit thread_local Slot* own_slot = nullptr;

struct Code {
  uintptr_t begin, end;
  const PluginName* plugin;
};
std::array<Code, 64> codes;
std::atomic<size_t> num_codes = 0;

std::atomic<int64_t> most_computing_ms = 0;  // 0: no limit
constexpr int kRuns = -1;
std::atomic<int> final_code = kRuns;
// NOLINTEND(*-non-const-global-variables)

// A thread's slot, and a stack for the crash of a full one; threads that come behind the last slot
// have neither.
class ThreadSlot {
 public:
  ThreadSlot() {
    for (Slot& slot : slots) {
      pid_t nobody = 0;
      if (!slot.thread.compare_exchange_strong(nobody, gettid())) continue;
      own_slot = &slot;
      break;
    }
    stack_t before = {};
    if (sigaltstack(nullptr, &before) != 0 || (before.ss_flags & SS_DISABLE) == 0) return;
    stack_ = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const stack_t own = {.ss_sp = stack_, .ss_flags = 0, .ss_size = kStackBytes};
    if (stack_ != MAP_FAILED) sigaltstack(&own, nullptr);
  }
  ~ThreadSlot() {
    if (own_slot != nullptr && own_slot->plugin.load() != nullptr) return;  // exit() in a call
    if (Slot* slot = std::exchange(own_slot, nullptr)) {
      slot->put(nullptr, "", CallKind::kAnswers);
      slot->thread = 0;
    }
    if (stack_ == MAP_FAILED) return;
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    sigaltstack(&none, nullptr);
    munmap(stack_, kStackBytes);
  }
  ThreadSlot(const ThreadSlot&) = delete;
  ThreadSlot& operator=(const ThreadSlot&) = delete;

 private:
  static constexpr size_t kStackBytes = 65536;
  void* stack_ = MAP_FAILED;
};

Slot* slot_of_thread() {
  thread_local const ThreadSlot holds;
  return own_slot;
}

// ---- Crashes ----

struct Signal {
  int number;
  bool is_timer;  // comes from nowhere on a stack
  struct sigaction before = {};
};
constinit std::array<Signal, 8> watched = {{{SIGSEGV, false},
                                            {SIGBUS, false},
                                            {SIGABRT, false},
                                            {SIGFPE, false},
                                            {SIGILL, false},
                                            {SIGALRM, true},
                                            {SIGVTALRM, true},
                                            {SIGPROF, true}}};

// A line that is made in a handler: no memory is taken, and one call writes it.
class Line {
 public:
  void add(const char* text) {
    const size_t length = std::min(std::strlen(text), text_.size() - size_);
    std::memcpy(text_.data() + size_, text, length);
    size_ += length;
  }
  void write_out() const {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text_.data(), size_);
  }

 private:
  std::array<char, 1024> text_;
  size_t size_ = 0;
};

[[noreturn]] void tell_crash(const char* family, const char* function, const char* place,
                             int number) {
  Line line;
  if (isatty(STDERR_FILENO) == 1) line.add("\n");  // the progress may stand in this one
  line.add("error: ");
  if (family != nullptr) {
    line.add(family);
    line.add(".");
    line.add(function);
    line.add(": ");
  }
  line.add(place);
  line.add(": ");
  line.add(words_of_end(number));
  line.add("; ");
  line.add(kAskAuthor);
  line.add(" [PLUGIN_CRASHED]\n");
  line.write_out();
  _exit(kBadPlugin);
}

void on_signal(int number, siginfo_t* info, void* context) {
  Signal& signal = *std::ranges::find(watched, number, &Signal::number);
  // A page of a file that was lost is told by who mapped it, whoever reads it.
  if (number == SIGBUS && (signal.before.sa_flags & SA_SIGINFO) != 0)
    signal.before.sa_sigaction(number, info, context);
  const bool is_foreign = info->si_code == SI_USER && info->si_pid != getpid();
  if (!is_foreign) {
    if (const Slot* slot = own_slot) {
      const PluginName* plugin = slot->plugin.load();
      if (plugin != nullptr)
        tell_crash(plugin->family.c_str(), slot->function, plugin->place.c_str(), number);
    }
    if (const char* place = plugin_on_stack()) tell_crash(nullptr, nullptr, place, number);
    // Nothing of the program or of LibTorch sets a timer.
    if (signal.is_timer)
      tell_crash(nullptr, nullptr,
                 num_codes == 1 ? codes[0].plugin->place.c_str() : "one of the plugins", number);
  }
  sigaction(number, &signal.before, nullptr);
  raise(number);
}

void take_signals() {
  void* frames[4];
  backtrace(frames, 4);  // the first call loads a library, which a handler must not
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (Signal& signal : watched) {
    sigaction(signal.number, nullptr, &signal.before);
    if (signal.is_timer && signal.before.sa_handler != SIG_DFL) continue;  // it is ours
    sigaction(signal.number, &action, nullptr);
  }
}

// ---- Time ----

std::string read_text(const std::string& path) {
  std::array<char, 4096> text;
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

// What the system says of a thread.
struct Activity {
  char state = 'S';
  milliseconds used{0};  // on a core
};

Activity activity_of(pid_t thread) {
  Activity activity;
  const std::string text = read_text("/proc/self/task/" + std::to_string(thread) + "/stat");
  unsigned long long user = 0, system = 0;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &activity.state, &user,
                  &system) != 3)
    return {};
  activity.used =
      milliseconds((user + system) * 1000 / static_cast<unsigned long long>(sysconf(_SC_CLK_TCK)));
  return activity;
}

// A debugger stops one thread and not the watch.
bool is_traced() {
  constexpr std::string_view kField = "TracerPid:\t";
  const std::string text = read_text("/proc/self/status");
  const size_t at = text.find(kField);
  return at != std::string::npos && text[at + kField.size()] != '0';
}

std::string seconds_text(milliseconds time) {
  return std::to_string(time.count() / 1000) + " seconds";
}

// What is known of the call that a thread is in.
struct Watched {
  uint64_t turn = 0;
  milliseconds time{0}, used{0};
  milliseconds next_note{0};
};

// ---- The thread that watches ----

constexpr milliseconds kInterval{500};

void watch_always() {
  CallWatch watch;
  auto before = std::chrono::steady_clock::now();
  for (;;) {
    std::this_thread::sleep_for(kInterval);
    const auto now = std::chrono::steady_clock::now();
    // The clock goes on where the process is stopped.
    const auto passed =
        std::min(std::chrono::duration_cast<milliseconds>(now - before), 2 * kInterval);
    before = now;
    for (const CallWatch::Verdict& verdict : watch.look(passed)) {
      const std::string line = (isatty(STDERR_FILENO) == 1 ? "\n" : "") + verdict.line;
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), line.size());
      if (verdict.exit_code) _exit(*verdict.exit_code);
    }
  }
}

void start_watch() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the other threads
  try {
    std::thread(watch_always).detach();
  } catch (const std::system_error&) {  // there may be no more threads: nothing is watched then
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

const PluginName& lasting(PluginName name) {
  static auto& mutex = *new std::mutex;
  static auto& names = *new std::set<PluginName>;
  const std::lock_guard lock(mutex);
  return *names.insert(std::move(name)).first;
}

PluginCall::PluginCall(const PluginName& plugin, const char* function, CallKind kind) {
  Slot* slot = slot_of_thread();
  if (slot == nullptr) return;
  outer_plugin_ = slot->plugin.load(std::memory_order_relaxed);
  outer_function_ = slot->function.load(std::memory_order_relaxed);
  outer_kind_ = slot->kind.load(std::memory_order_relaxed);
  slot->put(&plugin, function, kind);
}

PluginCall::~PluginCall() {
  if (own_slot != nullptr) own_slot->put(outer_plugin_, outer_function_, outer_kind_);
}

std::string running_call() {
  const PluginName* plugin = own_slot == nullptr ? nullptr : own_slot->plugin.load();
  return plugin == nullptr ? "" : plugin->family + "." + own_slot->function.load() + ": ";
}

void remember_code(const void* address, const PluginName& plugin) {
  static auto& mutex = *new std::mutex;
  const std::lock_guard lock(mutex);
  if (num_codes == codes.size()) return;
  Code code = {reinterpret_cast<uintptr_t>(address), 0, &plugin};
  const auto find = [](dl_phdr_info* library, size_t, void* wanted) {
    Code& found = *static_cast<Code*>(wanted);
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = library->dlpi_phdr[i];
      if (segment.p_type != PT_LOAD) continue;
      begin = std::min<uintptr_t>(begin, library->dlpi_addr + segment.p_vaddr);
      end = std::max<uintptr_t>(end, library->dlpi_addr + segment.p_vaddr + segment.p_memsz);
    }
    if (found.begin < begin || found.begin >= end) return 0;
    found.begin = begin, found.end = end;
    return 1;
  };
  if (dl_iterate_phdr(find, &code) == 0) return;
  codes[num_codes] = code;
  ++num_codes;
}

const char* plugin_on_stack() {
  void* frames[64];
  const int count = backtrace(frames, 64);
  for (int i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(frames[i]);
    for (size_t k = 0; k < num_codes; ++k) {
      if (address >= codes[k].begin && address < codes[k].end)
        return codes[k].plugin->place.c_str();
    }
  }
  return nullptr;
}

void watch_calls() {
  static std::once_flag once;
  std::call_once(once, [] {
    take_signals();
    start_watch();
  });
}

void limit_computing(std::optional<std::chrono::seconds> limit) {
  most_computing_ms = limit ? milliseconds(*limit).count() : 0;
}

void watch_exit(int code) {
  final_code = code;
}

struct CallWatch::State {
  std::array<Watched, slots.size()> calls;
  milliseconds longest{0};  // of those that came back
  milliseconds ending{0};   // since the program's work was done

  // The slot's call where it is the one that was seen before, with its time; else null.
  const PluginName* follow(const Slot& slot, Watched& call, milliseconds passed) {
    const uint64_t turn = slot.turn.load(std::memory_order_acquire);
    const PluginName* plugin = slot.plugin.load(std::memory_order_relaxed);
    const Activity now = plugin == nullptr ? Activity{} : activity_of(slot.thread);
    if (turn == call.turn && plugin != nullptr) {
      const milliseconds ran = std::clamp(now.used - call.used, milliseconds(0), passed);
      call.time += now.state == 'S' ? passed : ran;
      call.used = now.used;
      return plugin;
    }
    longest = std::max(longest, call.time);
    call = {
        .turn = turn, .used = now.used, .next_note = std::max(kFirstNote, kNoteGrowth * longest)};
    return nullptr;
  }
};

CallWatch::CallWatch() : state_(std::make_unique<State>()) {}
CallWatch::~CallWatch() = default;

std::vector<CallWatch::Verdict> CallWatch::look(milliseconds passed) {
  std::vector<Verdict> verdicts;
  const auto tell = [&](const std::string& line, std::optional<int> exit_code) {
    Verdict& verdict = verdicts.emplace_back();
    verdict.line = line;
    verdict.exit_code = exit_code;
  };
  if (const int code = final_code; code != kRuns) {
    state_->ending += passed;
    if (state_->ending >= kAnswerTime)
      tell(
          "warning: what a plugin or a library does at the end of the process does not come back; "
          "it ends without that\n",
          code);
    return verdicts;
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    Watched& call = state_->calls[i];
    const PluginName* plugin = state_->follow(slots[i], call, passed);
    if (plugin == nullptr) continue;
    const std::string where =
        plugin->family + "." + slots[i].function.load() + ": " + plugin->place;
    const bool answers = slots[i].kind == CallKind::kAnswers;
    const milliseconds limit =
        answers ? milliseconds(kAnswerTime) : milliseconds(most_computing_ms);
    if (limit.count() > 0 && call.time >= limit) {
      const Error error(ErrorCode::kEnvironment,
                        where + ": it does not come back within " + seconds_text(limit), kAskAuthor,
                        "PLUGIN_HANGS");
      if (!is_traced()) tell(report::error_line(error), kBadPlugin);
    } else if (call.time >= call.next_note) {
      tell(where + ": it runs for " + seconds_text(call.time) + " and has not come back\n", {});
      call.next_note = kNoteGrowth * call.time;
    }
  }
  return verdicts;
}

}  // namespace atelier::plugins
