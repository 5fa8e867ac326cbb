#include "host/distributed/history.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace atelier::distributed {
namespace {

constexpr size_t kRemembered = 64;
constexpr uint64_t kOffset = 14695981039346656037U, kPrime = 1099511628211U;  // of FNV-1a

// A dump, read again.
struct Dump {
  int64_t count = 0;
  std::vector<std::pair<uint64_t, std::string>> last;

  int64_t first() const { return count - static_cast<int64_t>(last.size()) + 1; }
  const auto& at(int64_t number) const { return last.at(static_cast<size_t>(number - first())); }
};

// By rank.
using DumpsByRank = std::map<int, Dump>;

std::map<std::string, DumpsByRank> parse_groups(const std::vector<std::string>& dumps) {
  std::map<std::string, DumpsByRank> groups;
  for (size_t rank = 0; rank < dumps.size(); ++rank) {
    if (dumps[rank].empty()) continue;
    const nlohmann::json histories = nlohmann::json::parse(dumps[rank]);
    for (const auto& [group, history] : histories.items())
      groups[group][static_cast<int>(rank)] = {history.at("count").get<int64_t>(),
                                               history.at("last").get<decltype(Dump::last)>()};
  }
  return groups;
}

std::optional<Difference> first_difference(const DumpsByRank& told) {
  const auto& [first, one] = *told.begin();
  for (const auto& [rank, other] : told) {
    const int64_t end = std::min(one.count, other.count);
    for (int64_t i = std::max({one.first(), other.first(), int64_t{1}}); i <= end; ++i) {
      if (one.at(i).first == other.at(i).first) continue;
      return Difference{
          .one = first, .other = rank, .of_one = one.at(i).second, .of_other = other.at(i).second};
    }
  }
  return std::nullopt;
}

std::vector<int> ranks_behind(const DumpsByRank& told) {
  int64_t most = 0;
  for (const auto& [rank, one] : told) most = std::max(most, one.count);
  std::vector<int> ranks;
  for (const auto& [rank, one] : told) {
    if (one.count < most) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

void History::add(std::string_view exchange) {
  uint64_t hash = last_.empty() ? kOffset : last_.back().hash;
  for (const char c : exchange) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  ++count_;
  if (last_.size() == kRemembered) last_.pop_front();
  last_.push_back({hash, std::string(exchange)});
}

nlohmann::json History::to_json() const {
  nlohmann::json last = nlohmann::json::array();
  for (const Entry& entry : last_) last.push_back(nlohmann::json::array({entry.hash, entry.text}));
  return {{"count", count_}, {"last", std::move(last)}};
}

void Histories::add(const std::string& group, std::string_view exchange) {
  by_group_[group].add(exchange);
  last_ = exchange;
}

std::pair<int64_t, uint64_t> Histories::of(const std::string& group) const {
  const auto found = by_group_.find(group);
  if (found == by_group_.end()) return {};
  return {found->second.count(), found->second.hash()};
}

std::string Histories::dump() const {
  nlohmann::json groups = nlohmann::json::object();
  for (const auto& [group, history] : by_group_) groups[group] = history.to_json();
  return groups.dump();
}

std::optional<Difference> first_difference(const std::vector<std::string>& dumps) {
  for (const auto& [group, told] : parse_groups(dumps)) {
    if (const auto difference = first_difference(told)) return difference;
  }
  return std::nullopt;
}

std::vector<int> ranks_behind(const std::vector<std::string>& dumps) {
  std::vector<int> of_all, of_smaller;
  for (const auto& [group, told] : parse_groups(dumps)) {
    const std::vector<int> behind = ranks_behind(told);
    std::vector<int>& ranks = group.empty() ? of_all : of_smaller;
    ranks.insert(ranks.end(), behind.begin(), behind.end());
  }
  std::ranges::sort(of_smaller);
  of_smaller.erase(std::ranges::unique(of_smaller).begin(), of_smaller.end());
  return of_smaller.empty() ? of_all : of_smaller;
}

}  // namespace atelier::distributed
