// Collects mistakes, so that the user hears of all of them at once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "atelier/error.h"

namespace atelier::report {

// The mistakes found while one thing was checked. Not thread-safe.
class Problems {
 public:
  // `problem` names its place first: "--height: 1000 is no multiple of 16".
  void add(std::string problem, std::string hint = {},
           ErrorCode code = ErrorCode::kInvalidArgument);
  void add(const Error& error);

  // Runs `check` and keeps the Error that it throws.
  template <typename F>
  void collect(F&& check) {
    try {
      check();
    } catch (const Error& error) {
      add(error);
    }
  }

  bool empty() const { return errors_.empty(); }
  size_t size() const { return errors_.size(); }

  // Throws nothing when there is none, the error itself when there is one, and otherwise one Error
  // that counts them in its first line and has one indented line for each below. Its code is that
  // of the first.
  void throw_if_any() const;

 private:
  std::vector<Error> errors_;
};

// Cuts `names` to `limit` and says how many more there are: "a, b and 3 more". Names are quoted and
// escaped.
std::string list_names(const std::vector<std::string>& names, size_t limit = 20);

// The name of `known` that `given` was probably meant to be: at most a third of its letters differ.
// Empty: none.
std::string nearest_name(std::string_view given, const std::vector<std::string>& known);

// Where memory is used up and nothing better is known.
inline constexpr const char* kSmallerHint = "use a smaller size or batch";

}  // namespace atelier::report
