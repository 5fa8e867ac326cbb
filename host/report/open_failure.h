// Whose mistake it is that a file cannot be opened.
#pragma once

#include <cerrno>

#include "atelier/error.h"

namespace atelier::report {

// Whether `why`, of errno, means that a path can be no file's, whatever the disk holds: it is too
// long, or a loop of links.
inline bool is_wrong_path(int why) {
  return why == ENAMETOOLONG || why == ELOOP;
}

// The error code for errno after a call that opens a file by its name.
inline ErrorCode open_failure(int why) {
  if (why == ENOENT || why == ENOTDIR) return ErrorCode::kNotFound;
  return is_wrong_path(why) ? ErrorCode::kInvalidArgument : ErrorCode::kEnvironment;
}

}  // namespace atelier::report
