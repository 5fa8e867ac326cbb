// Which function of a plugin each thread is in: what is told when it crashes or does not come back.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace atelier::plugins {

// A plugin, as errors name it.
struct PluginName {
  std::string family;  // "my_family"
  std::string place;   // its file, quoted
  auto operator<=>(const PluginName&) const = default;
};

// A copy of the name, which lives as long as the process: a crash may ask for it at any time.
const PluginName& lasting(PluginName name);

enum class CallKind {
  kAnswers,   // it says what there is, which is soon done
  kComputes,  // it takes the time that it takes
};

// While it lives, the thread is in `function` of a plugin. It takes no lock and reads no clock.
class PluginCall {
 public:
  // Both names live as long as the process.
  PluginCall(const PluginName& plugin, const char* function, CallKind kind);
  ~PluginCall();
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  const PluginName* outer_plugin_ = nullptr;
  const char* outer_function_ = "";
  CallKind outer_kind_ = CallKind::kAnswers;
};

// The function of a plugin that this thread is in, as errors begin: "my_family.detect: "; empty
// when it is in none.
std::string running_call();

// Notes where the code of an opened plugin lies: of the library that `address` is in.
void remember_code(const void* address, const PluginName& plugin);

// The place of the plugin whose code stands on this thread's stack; null when there is none. Safe
// in a signal's handler.
const char* plugin_on_stack();

// From now on, what ends the process by a signal while a plugin's code runs is told in one line
// that names plugin and function, and ends it with exit code 3, and so does a function that answers
// and has not within kAnswerTime. One that computes is named after a minute, and then now and then.
// What crashes outside of plugins goes the way that it went before. Does something once.
void watch_calls();

// Functions that compute are given no more than `limit`, too; nullopt: as long as they need.
void limit_computing(std::optional<std::chrono::seconds> limit);

// Says that the program's work is done, with this exit code: what plugins and libraries registered
// for the end of the process holds it for kAnswerTime at most.
void watch_exit(int code);

constexpr std::chrono::seconds kAnswerTime{15};

// What tells a call that lasts too long; watch_calls() has one in a thread. A call's time is that
// in which its thread runs or sleeps: not while the process is stopped, nor while the thread waits
// for a core or a disk.
class CallWatch {
 public:
  CallWatch();
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  struct Verdict {
    std::string line;              // for stderr
    std::optional<int> exit_code;  // the process ends with it
  };
  // Looks at all calls once; `passed` is the time since it did before.
  std::vector<Verdict> look(std::chrono::milliseconds passed);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace atelier::plugins
