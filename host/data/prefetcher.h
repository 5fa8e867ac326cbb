// Results that are made ahead of time, on threads, and taken in order.
#pragma once

#include <cstdint>
#include <functional>

namespace atelier::data {

// Calls `make(position)` for first, first + 1, … last - 1 on `threads` threads, at most `depth`
// ahead of what was taken, and gives the results in that order, whatever the number of threads.
// With 0 threads they are made when they are taken. An exception of make() comes out of the next()
// of its position. The destructor waits for calls that are under way. next() is called from one
// thread.
template <typename T>
class Prefetcher {
 public:
  Prefetcher(int threads, int64_t depth, int64_t first, int64_t last,
             std::function<T(int64_t position)> make);
  ~Prefetcher();
  T next();
  // Seconds that next() has waited so far.
  double waited() const;
};

}  // namespace atelier::data
