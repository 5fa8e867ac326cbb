// Whose mistake it is that a file cannot be opened.
#pragma once

#include <cerrno>

#include "atelier/error.h"

namespace atelier::report {

// Of errno after a call that opens a file by its name.
inline ErrorCode open_failure(int why) {
  if (why == ENOENT || why == ENOTDIR) return ErrorCode::kNotFound;
  return why == ENAMETOOLONG || why == ELOOP ? ErrorCode::kInvalidArgument
                                             : ErrorCode::kEnvironment;
}

}  // namespace atelier::report
