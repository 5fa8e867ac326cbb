// Sizes as text, and what to do where they are too large.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "host/report/problems.h"

namespace atelier::report {

// "1.50 GiB"; what is less than nothing is nothing.
inline std::string bytes_text(int64_t bytes) {
  return format_bytes(static_cast<uint64_t>(std::max<int64_t>(bytes, 0)));
}

// The size of an image as users write it: "640x480", the width first.
inline std::string size_text(int64_t height, int64_t width) {
  return std::to_string(width) + "x" + std::to_string(height);
}

// Where memory is used up and nothing better is known.
inline constexpr const char* kSmallerHint = "use a smaller size or batch";

}  // namespace atelier::report
