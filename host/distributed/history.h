// What a rank has exchanged with the others, so that they can tell whether all did the same.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atelier::distributed {

// Exchanges count from 1. The last ones are remembered, each with a hash of all up to it.
class History {
 public:
  void add(std::string_view exchange);

  int64_t count() const { return count_; }
  uint64_t hash() const { return last_.empty() ? 0 : last_.back().hash; }
  nlohmann::json to_json() const;

 private:
  struct Entry {
    uint64_t hash = 0;
    std::string text;
  };
  int64_t count_ = 0;
  std::deque<Entry> last_;
};

// The histories of a rank: with all others, whose group has no name, and with those of each smaller
// group that it belongs to.
class Histories {
 public:
  void add(const std::string& group, std::string_view exchange);

  // How many exchanges of `group`, and a hash of them.
  std::pair<int64_t, uint64_t> of(const std::string& group) const;
  // The exchange that was added last, of any group.
  const std::string& last() const { return last_; }
  // For other ranks.
  std::string dump() const;

 private:
  std::map<std::string, History> by_group_;
  std::string last_ = "the start";
};

// Where two ranks did not do the same.
struct Difference {
  int one = 0, other = 0;  // ranks
  std::string of_one, of_other;
};

// `dumps`: of all ranks; empty where one says nothing. Compares, in each group, every rank with the
// first that says something, as far as both have come.
std::optional<Difference> first_difference(const std::vector<std::string>& dumps);

// The ranks that have not come as far as others, of those that say something: others of a smaller
// group where there are such, which all the rest waits for.
std::vector<int> ranks_behind(const std::vector<std::string>& dumps);

}  // namespace atelier::distributed
