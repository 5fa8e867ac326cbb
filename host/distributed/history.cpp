#include "host/distributed/history.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace atelier::distributed {
namespace {

constexpr size_t kRemembered = 64;
constexpr uint64_t kOffset = 14695981039346656037U, kPrime = 1099511628211U;  // of FNV-1a

// A dump, read again.
struct Told {
  int64_t count = 0;
  std::vector<std::pair<uint64_t, std::string>> last;

  int64_t first() const { return count - static_cast<int64_t>(last.size()) + 1; }
  const auto& at(int64_t number) const { return last.at(static_cast<size_t>(number - first())); }
};

Told parse(const std::string& dump) {
  const nlohmann::json json = nlohmann::json::parse(dump);
  return {json.at("count").get<int64_t>(), json.at("last").get<decltype(Told::last)>()};
}

}  // namespace

void History::add(std::string_view exchange) {
  uint64_t hash = last_.empty() ? kOffset : last_.back().hash;
  for (const char c : exchange) hash = (hash ^ static_cast<unsigned char>(c)) * kPrime;
  ++count_;
  if (last_.size() == kRemembered) last_.pop_front();
  last_.push_back({hash, std::string(exchange)});
}

std::string History::dump() const {
  nlohmann::json last = nlohmann::json::array();
  for (const Entry& entry : last_) last.push_back(nlohmann::json::array({entry.hash, entry.text}));
  return nlohmann::json{{"count", count_}, {"last", std::move(last)}}.dump();
}

std::optional<Difference> first_difference(const std::vector<std::string>& dumps) {
  const auto begin = std::ranges::find_if(dumps, [](const auto& dump) { return !dump.empty(); });
  if (begin == dumps.end()) return std::nullopt;
  const Told one = parse(*begin);
  for (auto dump = begin + 1; dump != dumps.end(); ++dump) {
    if (dump->empty()) continue;
    const Told other = parse(*dump);
    const int64_t end = std::min(one.count, other.count);
    for (int64_t i = std::max({one.first(), other.first(), int64_t{1}}); i <= end; ++i) {
      if (one.at(i).first == other.at(i).first) continue;
      return Difference{.one = static_cast<int>(begin - dumps.begin()),
                        .other = static_cast<int>(dump - dumps.begin()),
                        .of_one = one.at(i).second,
                        .of_other = other.at(i).second};
    }
  }
  return std::nullopt;
}

std::vector<int> ranks_behind(const std::vector<std::string>& dumps) {
  std::vector<int64_t> counts;
  for (const std::string& dump : dumps) counts.push_back(dump.empty() ? -1 : parse(dump).count);
  const int64_t most = std::ranges::max(counts);
  std::vector<int> ranks;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] >= 0 && counts[rank] < most) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

}  // namespace atelier::distributed
