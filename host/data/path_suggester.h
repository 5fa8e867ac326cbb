// Guesses which file a path was meant to name.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace atelier::data {

// Lists each folder once. Not thread-safe.
class PathSuggester {
 public:
  // What to do about a path that does not exist: a file whose name differs in case, ending, spaces
  // or the Unicode form of its letters, or the folder that is not there.
  std::string hint(const std::string& path);

 private:
  using Names = std::map<std::string, std::string>;  // by what is left of them when folded
  const Names& names_in(const std::string& folder);

  std::map<std::string, Names> folders_;
};

}  // namespace atelier::data
