// Tools for tests on what is refused.
#pragma once

#include <string>
#include <vector>

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::test {

// What the Error that `action` throws says; empty where it throws none.
template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// The error that `action` throws; a test in which it throws none fails.
template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error, one was expected");
  return Error(ErrorCode::kInternal, "");
}

inline bool mentions(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

// Runs `action`, which throws an Error of `code` whose text holds every one of `parts`.
template <class Action>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, Action action) {
  const Error error = error_of(action);
  INFO(error.what());
  CHECK(to_string(error.code()) == to_string(code));
  for (const std::string& part : parts)
    CHECK_THAT(std::string(error.what()), Catch::Contains(part));
}

}  // namespace atelier::test
