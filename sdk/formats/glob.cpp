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
  for (size_t end = patterns.find('|'); end != std::string_view::npos; end = patterns.find('|')) {
    if (glob_match(patterns.substr(0, end), name)) return true;
    patterns.remove_prefix(end + 1);
  }
  return glob_match(patterns, name);
}

bool has_glob(std::string_view text) {
  return text.find_first_of("*?") != std::string_view::npos;
}

}  // namespace atelier::formats
