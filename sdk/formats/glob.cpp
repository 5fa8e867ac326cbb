#include "formats/glob.h"

#include <cstddef>

namespace atelier::formats {

bool glob_match(std::string_view pattern, std::string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = std::string_view::npos;  // the last `*` seen
  size_t retry = 0;                      // where its run ends so far
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool any_glob_matches(std::string_view patterns, std::string_view name) {
  while (true) {
    const size_t bar = patterns.find('|');
    if (glob_match(patterns.substr(0, bar), name)) return true;
    if (bar == std::string_view::npos) return false;
    patterns.remove_prefix(bar + 1);
  }
}

bool has_glob(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

}  // namespace atelier::formats
