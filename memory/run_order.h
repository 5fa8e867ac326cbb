// Which block runs next, learnt from the order of the runs before.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace atelier::memory {

// Blocks are numbered in running order. After the last four runs, or else after the last two, comes
// what came after them the last time; where they are new, the next block in the direction of the
// last two runs.
class RunOrder {
 public:
  explicit RunOrder(int64_t blocks) : blocks_(blocks) {}

  void add(int64_t block);

  // The first `count` blocks that come next, the one that runs left out. Fewer when runs go round
  // in a circle of fewer.
  std::vector<int64_t> next(int64_t count) const;

 private:
  using Runs = std::vector<int64_t>;

  int64_t after(const Runs& runs) const;

  int64_t blocks_;
  Runs last_;                       // a few
  std::map<Runs, int64_t> learnt_;  // by the runs before
};

}  // namespace atelier::memory
