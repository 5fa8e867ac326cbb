// What is wrong, or odd, with the rows of a dataset.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/error.h"

namespace atelier::data {

// Keeps the first `limit` findings and counts the others by kind. Not thread-safe.
class Findings {
 public:
  explicit Findings(int64_t limit) : limit_(limit) {}

  // `kind` is a plural that groups findings, "missing files".
  void add(std::string_view kind, Error error);
  void add(std::string_view kind, std::string message, std::string hint = {},
           ErrorCode code = ErrorCode::kInvalidArgument);

  int64_t count() const { return count_; }

  // The findings in the order in which they came, and at most one more that counts the rest:
  // "PLACE: 12 more (damaged pictures: 2, missing files: 10)".
  std::vector<Error> list(const std::string& place) const;

 private:
  int64_t limit_, count_ = 0;
  std::vector<Error> told_;
  std::map<std::string, int64_t, std::less<>> untold_;
};

}  // namespace atelier::data
