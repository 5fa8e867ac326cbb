#include "host/plugins/guard.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <regex>
#include <string>
#include <utility>

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
LastStack& recorded_stack() {
  static auto& stack = *new LastStack;
  return stack;
}

std::string at(std::string_view where, const std::string& what) {
  return std::string(where) + ": " + what;
}

// Whether LibTorch says that tensors of a dry run, which are on the device "meta", have no values,
// or that others stand beside them. Behind a dry run that is what a plugin kept of it.
bool is_of_dry_run(const std::string& line) {
  static const std::regex device("\\b[Mm]eta\\b");
  return std::regex_search(line, device);
}

// Whether the device or one of its libraries failed.
bool is_of_device(const std::string& line) {
  return line.starts_with("CUDA error") || line.starts_with("cuDNN error");
}

// An exception that left a block, and the block's path.
struct BlockNote {
  std::exception_ptr exception;
  std::string path;
};
BlockNote& block_note() {
  thread_local BlockNote note;
  return note;
}

// The path of the block that the exception that is being handled left; empty: none is known.
std::string noted_block() {
  const BlockNote note = std::exchange(block_note(), {});
  return note.exception == std::current_exception() ? note.path : "";
}

}  // namespace

std::string last_stack() {
  const std::lock_guard lock(recorded_stack().mutex);
  return recorded_stack().text;
}

bool are_stacks_wanted() {
  const char* variable = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  return variable != nullptr && std::string_view(variable) == "1";
}

void note_block(const std::string& path) {
  const std::exception_ptr exception = std::current_exception();
  if (block_note().exception != exception) block_note() = {exception, path};
}

namespace {

// Throws what an exception becomes that is no Error and not of memory. `stack`: as LibTorch
// recorded it.
[[noreturn]] void throw_told(std::string_view where, std::string_view place,
                             const std::string& line, const std::string& hint,
                             const std::string& stack) {
  const std::string block = noted_block();
  {
    const std::lock_guard lock(recorded_stack().mutex);
    recorded_stack().text = stack;
  }
  if (place.empty() || is_of_device(line)) throw Error(ErrorCode::kInternal, at(where, line), hint);
  throw Error(ErrorCode::kEnvironment,
              at(std::string(where) + (block.empty() ? "" : " in " + block),
                 std::string(place) + ": it throws " + line),
              hint.empty() ? "ask its author" : hint, "PLUGIN_THROWS");
}

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

void rethrow_at(std::string_view where, std::string_view place) {
  if (const std::optional<Error> error = out_of_memory()) throw error->at(where);
  try {
    throw;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kCancelled) throw;
    throw error.at(where);
  } catch (const c10::Error& error) {
    const std::string line = first_line(error.what_without_backtrace());
    const std::string hint = is_of_dry_run(line) ? ops::DryRun::kHint : "";
    if (!hint.empty() && ops::DryRun::is_on())
      throw Error(ErrorCode::kUnsupported, at(where, line), hint);
    throw_told(where, place, line, hint, error.what());
  } catch (const std::exception& error) {
    throw_told(where, place, first_line(error.what()), "", "");
  } catch (...) {
    throw_told(where, place, "an exception that is not a std::exception", "", "");
  }
}

}  // namespace atelier::plugins
