// Tools for tests on requests that are refused.
#pragma once

#include <string>

#include "host/http/server.h"
#include "support/catch.h"

namespace atelier::test {

struct Refusal {
  int status = 0;
  std::string message;
};

// The HttpError that `action` throws; a test in which it throws none fails.
template <class Action>
Refusal refusal_of(Action action) {
  try {
    action();
  } catch (const http::HttpError& error) {
    return {error.status(), error.what()};
  }
  FAIL("nothing is refused");
  return {};
}

}  // namespace atelier::test
