#include "host/plugins/guard.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <string>

#include <c10/util/Exception.h>

#include "atelier/host/dry_run.h"
#include "atelier/host/out_of_memory.h"

#include "host/report/problems.h"

namespace atelier::plugins {

namespace {

// LibTorch's messages go on with a C++ stack; only the first line is for people.
std::string first_line(const char* text) {
  std::string line(text);
  line.erase(std::min(line.find('\n'), line.size()));
  return line;
}

struct LastStack {
  std::mutex mutex;
  std::string text;
};
LastStack& last_stack() {
  static auto& stack = *new LastStack;
  return stack;
}

std::string at(std::string_view where, const std::string& what) {
  return std::string(where) + ": " + what;
}

// Whether LibTorch says that tensors of a dry run, which are on the device "meta", have no values,
// or that others stand beside them.
bool is_of_dry_run(const std::string& line) {
  return ops::DryRun::is_on() && (line.find("meta") != line.npos || line.find("Meta") != line.npos);
}

}  // namespace

std::string last_internal_stack() {
  const std::lock_guard lock(last_stack().mutex);
  return last_stack().text;
}

namespace {

// As out_of_memory(), where allocators refused memory since it was called before, or did not.
std::optional<Error> out_of_memory(bool was_refused) {
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory) return error;
  } catch (const c10::OutOfMemoryError& error) {
    return Error(ErrorCode::kOutOfMemory, first_line(error.what_without_backtrace()),
                 report::kSmallerHint);
  } catch (const std::bad_array_new_length&) {
    return std::nullopt;  // of no memory, but a length that cannot be one
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kOutOfMemory, "the host's memory is used up", report::kSmallerHint);
  } catch (const c10::Error& error) {
    const std::string line = first_line(error.what_without_backtrace());
    if (says_out_of_memory(line, was_refused))
      return Error(ErrorCode::kOutOfMemory, line, report::kSmallerHint);
  } catch (const std::exception& error) {  // cuDNN's front end has errors of its own
    const std::string line = first_line(error.what());
    if (says_out_of_memory(line, was_refused))
      return Error(ErrorCode::kOutOfMemory, line, report::kSmallerHint);
  } catch (...) {
  }
  return std::nullopt;
}

}  // namespace

std::optional<Error> out_of_memory() {
  static std::atomic<int64_t> refused_before = 0;
  const int64_t refused = refused_allocations();
  return out_of_memory(refused_before.exchange(refused) < refused);
}

void rethrow_at(std::string_view where) {
  if (const std::optional<Error> error = out_of_memory()) throw error->at(where);
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    throw error.at(where);
  } catch (const c10::Error& error) {
    const std::string line = first_line(error.what_without_backtrace());
    if (is_of_dry_run(line))
      throw Error(ErrorCode::kUnsupported, at(where, line), ops::DryRun::kHint);
    {
      const std::lock_guard lock(last_stack().mutex);
      last_stack().text = error.what();
    }
    throw Error(ErrorCode::kInternal, at(where, line));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kInternal, at(where, first_line(error.what())));
  } catch (...) {
    throw Error(ErrorCode::kInternal, at(where, "an exception that is not a std::exception"));
  }
}

}  // namespace atelier::plugins
