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
// its message. Where a plugin's code ran, whose file `place` names, these last ones are the
// plugin's and become Error{kEnvironment} (PLUGIN_THROWS) with the file and the block that
// note_block() told; errors of the device and its libraries stay kInternal.
[[noreturn]] void rethrow_at(std::string_view where, std::string_view place = {});

// Says that the exception that is being handled left a block, of this path; the first one counts.
void note_block(const std::string& path);

// The error for the exception that is being handled, when it says that memory is used up:
// LibTorch's, std::bad_alloc, or an Error with kOutOfMemory as it is.
std::optional<Error> out_of_memory();

// The stack of the last exception that became kInternal or PLUGIN_THROWS, as LibTorch recorded it;
// empty when it recorded none.
std::string last_stack();

// Whether stacks of all errors are asked for: TORCH_SHOW_CPP_STACKTRACES=1, as LibTorch's own.
bool are_stacks_wanted();

// Calls `call` and gives back what it gives. `where` names the call, "my_family.denoise", and is
// put in front of what goes wrong in it; `place` as for rethrow_at().
template <typename F>
decltype(auto) guard(std::string_view where, F&& call, std::string_view place = {}) {
  try {
    return std::forward<F>(call)();
  } catch (...) {
    rethrow_at(where, place);
  }
}

}  // namespace atelier::plugins
