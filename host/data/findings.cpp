#include "host/data/findings.h"

#include <utility>

namespace atelier::data {

void Findings::add(std::string_view kind, Error error) {
  if (count_++ < limit_) {
    told_.push_back(std::move(error));
  } else {
    ++untold_[std::string(kind)];
  }
}

void Findings::add(std::string_view kind, std::string message, std::string hint, ErrorCode code) {
  add(kind, Error(code, std::move(message), std::move(hint)));
}

std::vector<Error> Findings::list(const std::string& place) const {
  std::vector<Error> findings = told_;
  if (untold_.empty()) return findings;
  std::string kinds;
  int64_t more = 0;
  for (const auto& [kind, count] : untold_) {
    kinds += (kinds.empty() ? "" : ", ") + kind + ": " + std::to_string(count);
    more += count;
  }
  findings.emplace_back(ErrorCode::kInvalidArgument,
                        place + ": " + std::to_string(more) + " more (" + kinds + ")",
                        "raise --max_errors to see them");
  return findings;
}

}  // namespace atelier::data
