// How long an exchange between ranks may take, by how long steps take.
#pragma once

#include <chrono>
#include <deque>
#include <optional>

namespace atelier::distributed {

class Pace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  void begin_step(Time now);

  // 20 times the median of the last steps, and a minute at least; nullopt before one has ended.
  std::optional<std::chrono::milliseconds> limit() const;

 private:
  std::optional<Time> begin_;
  std::deque<std::chrono::milliseconds> steps_;
};

}  // namespace atelier::distributed
