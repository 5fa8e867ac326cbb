// What is wrong, or odd, with the rows of a dataset.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "atelier/error.h"

namespace atelier::data {

// Tells `limit` findings one by one and counts the others by kind. Not thread-safe.
class Findings {
 public:
  explicit Findings(int64_t limit) : limit_(limit) {}

  // The row that findings from now on belong to. 0, as at first: none.
  void set_row(uint64_t row) { row_ = row; }

  // `kind` is a plural that groups findings, "missing files"; a literal.
  void add(std::string_view kind, const Error& error);
  void add(std::string_view kind, std::string message, std::string hint = {},
           ErrorCode code = ErrorCode::kInvalidArgument);

  int64_t count() const { return static_cast<int64_t>(entries_.size()); }

  // The findings in the order of their rows, and at most one more that counts the rest:
  // "PLACE: 12 more (damaged images: 2, missing files: 10)".
  std::vector<Error> list(const std::string& place) const;

 private:
  struct Entry {
    uint64_t row;
    std::string_view kind;
    Error error;
  };
  int64_t limit_;
  uint64_t row_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace atelier::data
