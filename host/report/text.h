// Numbers as text.
#pragma once

#include <cstdio>
#include <string>

namespace atelier::report {

// As printf, at most 239 characters.
std::string print(const char* format, auto... values) {
  char text[240];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

}  // namespace atelier::report
