// How the entries say that something is wrong.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace atelier::formats {

inline void promise(bool is_kept, const char* what) {
  if (is_kept) return;
  std::fprintf(stderr, "broken promise: %s\n", what);
  std::abort();
}

}  // namespace atelier::formats
