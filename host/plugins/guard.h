// The one place where exceptions of a plugin, or of LibTorch below it, become errors.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "atelier/error.h"

namespace atelier::plugins {

// Rethrows the exception that is being handled: an Error gets `where` put in front, but for
// kCancelled, which is nobody's fault,
// c10::OutOfMemoryError and std::bad_alloc become kOutOfMemory, what LibTorch says of tensors
// without values in a dry run kUnsupported, and every other one kInternal with the first line of
// its message.
[[noreturn]] void rethrow_at(std::string_view where);

// The error for the exception that is being handled, when it says that memory is used up:
// LibTorch's, std::bad_alloc, or an Error with kOutOfMemory as it is.
std::optional<Error> out_of_memory();

// The stack of the last exception that became kInternal, as LibTorch recorded it; empty when it
// recorded none.
std::string last_internal_stack();

// Calls `call` and gives back what it gives. `where` names the call, "my_family.denoise", and is
// put in front of what goes wrong in it.
template <typename F>
decltype(auto) guard(std::string_view where, F&& call) {
  try {
    return std::forward<F>(call)();
  } catch (...) {
    rethrow_at(where);
  }
}

}  // namespace atelier::plugins
