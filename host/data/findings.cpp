#include "host/data/findings.h"

#include <algorithm>
#include <map>
#include <utility>

namespace atelier::data {

void Findings::add(std::string_view kind, const Error& error) {
  entries_.push_back({row_, kind, error});
}

void Findings::add(std::string_view kind, std::string message, std::string hint, ErrorCode code) {
  add(kind, Error(code, std::move(message), std::move(hint)));
}

std::vector<Error> Findings::list(const std::string& place) const {
  std::vector<const Entry*> entries;
  for (const Entry& entry : entries_) entries.push_back(&entry);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry* a, const Entry* b) { return a->row < b->row; });
  const size_t num_told =
      std::min(entries.size(), static_cast<size_t>(std::max<int64_t>(0, limit_)));
  std::vector<Error> findings;
  for (size_t i = 0; i < num_told; ++i) findings.push_back(entries[i]->error);
  if (num_told == entries.size()) return findings;
  std::map<std::string_view, int64_t> untold;
  for (size_t i = num_told; i < entries.size(); ++i) ++untold[entries[i]->kind];
  std::string kinds;
  for (const auto& [kind, count] : untold) {
    if (!kinds.empty()) kinds += ", ";
    kinds += std::string(kind) + ": " + std::to_string(count);
  }
  findings.emplace_back(
      ErrorCode::kInvalidArgument,
      place + ": " + std::to_string(entries.size() - num_told) + " more (" + kinds + ")",
      "correct those above first");
  return findings;
}

}  // namespace atelier::data
