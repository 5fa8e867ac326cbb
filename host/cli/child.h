// This program once more, in a process of its own, where a fault or a hang harms nobody else.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>

namespace atelier::cli {

struct Child {
  pid_t process = -1;
  int output = -1;  // what it writes to stdout is read from there; follow() closes it
};

// Runs this program with these words, until the thread that calls this ends. Throws
// Error{kEnvironment}.
Child start_program(std::span<const std::string> words);

// What a time limit is of.
enum class Limit { kWhole, kEachLine };

// Calls `on_line` for every line that the child writes. Returns its wait status, or nullopt when
// it, or a line of it, took longer than that and it was killed.
std::optional<int> follow(Child child, Limit limit, double timeout_s,
                          const std::function<void(const std::string& line)>& on_line);

}  // namespace atelier::cli
