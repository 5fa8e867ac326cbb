// A plugin is code of others: what keeps an end of theirs from being ours without a word.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace atelier::plugins {

constexpr int kBadPlugin = 3;  // exit code, as of ErrorCode::kEnvironment

// "it ends the process (Segmentation fault)", of a signal. Safe in its handler.
const char* words_of_end(int signal);

// Calls `work`, which does something with the plugin `place`, in a child process, and gives back
// what it gives. What the plugin writes to stdout there goes to stderr.
//
// Throws the Error that `work` throws, and Error{kEnvironment} when the child ends in another way:
// by a crash, exit(), another exception, or without an answer after `limit`. It may take 2 GiB of
// memory. Not for a process with several threads that hold locks.
std::string in_own_process(const std::string& place, std::chrono::seconds limit,
                           const std::function<std::string()>& work);

// While it lives, what would end the process is told in one line that names the plugin, and ends it
// with exit code 3: exit(), an exception that nobody can catch, and a crash, on the thread that
// made it that of a full stack too. Within another one it does nothing.
class EndWatch {
 public:
  explicit EndWatch(const std::string& place);
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;
  EndWatch& operator=(const EndWatch&) = delete;

 private:
  bool is_outer_;
};

// Whether an EndWatch lives, or this is the child of in_own_process().
bool is_watched();

// Throws the exception that is being handled, which came out of the plugin `place`: an Error as it
// is, any other one as Error{kEnvironment} that says so in one line.
[[noreturn]] void rethrow_of_plugin(const std::string& place);

}  // namespace atelier::plugins
