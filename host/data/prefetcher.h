// Results that are made ahead of time, on threads, and taken in order.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "atelier/error.h"

#include "memory/clock.h"
#include "memory/transfer_device.h"

namespace atelier::data {

// How many results of that size wait at a time: `most`, and fewer of what takes much memory.
inline int64_t depth_within(int64_t most, int64_t bytes) {
  constexpr int64_t kBytesAhead = int64_t{1} << 30;
  return std::clamp<int64_t>(kBytesAhead / std::max<int64_t>(bytes, 1), 1, most);
}

// Calls `make(position)` for first, first + 1, … last - 1 on `threads` threads, at most `depth`
// ahead of what was taken, and gives the results in that order, whatever the number of threads.
// With 0 threads they are made when they are taken. Their tensors rest on the host. An exception of
// make() comes out of the next() of its position; the next() after it goes on with the position
// that follows. The destructor waits for calls that are under way. next() is called from one
// thread.
template <typename T>
class Prefetcher {
 public:
  // `depth` is at least 1.
  Prefetcher(int threads, int64_t depth, int64_t first, int64_t last,
             std::function<T(int64_t position)> make);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Throws Error{kInternal} after the last one.
  T next();

  // Seconds that next() has waited so far.
  double waited() const { return waited_; }

 private:
  struct Result {
    std::optional<T> value;
    std::exception_ptr failure;
    bool is_ready = false;
  };

  void work(std::stop_token stop);
  Result take();
  static Result result_of(const std::function<T(int64_t)>& make, int64_t position);
  Result& place_of(int64_t position);

  const std::function<T(int64_t)> make_;
  const int64_t first_, last_;
  int64_t to_take_;  // the position that next() gives
  double waited_ = 0.0;

  std::mutex mutex_;  // guards what follows, and writing to_take_
  std::condition_variable_any changed_;
  int64_t to_make_;                    // the position that is begun next
  std::vector<Result> results_;        // a ring over positions
  std::vector<std::jthread> threads_;  // the last member: they end before what they use
};

template <typename T>
Prefetcher<T>::Prefetcher(int threads, int64_t depth, int64_t first, int64_t last,
                          std::function<T(int64_t position)> make)
    : make_(std::move(make)), first_(first), last_(last), to_take_(first), to_make_(first) {
  if (depth < 1) throw Error(ErrorCode::kInternal, "a prefetcher needs room for one result");
  if (threads <= 0) return;
  results_.resize(static_cast<size_t>(std::clamp<int64_t>(last - first, 1, depth)));
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this](std::stop_token stop) { work(std::move(stop)); });
  }
}

template <typename T>
Prefetcher<T>::~Prefetcher() {
  // All at once, so that none begins another call while the first is waited for.
  for (std::jthread& thread : threads_) thread.request_stop();
}

template <typename T>
T Prefetcher<T>::next() {
  if (to_take_ >= last_) throw Error(ErrorCode::kInternal, "a prefetcher has nothing left");
  const double begin = memory::seconds_now();
  Result result = threads_.empty() ? result_of(make_, to_take_++) : take();
  waited_ += memory::seconds_now() - begin;
  if (result.failure) std::rethrow_exception(result.failure);
  return *std::move(result.value);
}

template <typename T>
auto Prefetcher<T>::take() -> Result {
  std::unique_lock lock(mutex_);
  Result& place = place_of(to_take_);
  changed_.wait(lock, [&] { return place.is_ready; });
  Result result = std::exchange(place, Result{});
  ++to_take_;
  changed_.notify_all();
  return result;
}

template <typename T>
void Prefetcher<T>::work(std::stop_token stop) {
  const auto depth = static_cast<int64_t>(results_.size());
  std::unique_lock lock(mutex_);
  while (true) {
    const bool has_room =
        changed_.wait(lock, stop, [&] { return to_make_ >= last_ || to_make_ < to_take_ + depth; });
    if (!has_room || stop.stop_requested() || to_make_ >= last_) return;
    const int64_t position = to_make_++;
    lock.unlock();
    Result result = result_of(make_, position);
    lock.lock();
    place_of(position) = std::move(result);
    changed_.notify_all();
  }
}

template <typename T>
auto Prefetcher<T>::result_of(const std::function<T(int64_t)>& make, int64_t position) -> Result {
  const memory::HostScope host;
  Result result;
  try {
    result.value.emplace(make(position));
  } catch (...) {
    result.failure = std::current_exception();
  }
  result.is_ready = true;
  return result;
}

template <typename T>
auto Prefetcher<T>::place_of(int64_t position) -> Result& {
  return results_[static_cast<size_t>(position - first_) % results_.size()];
}

}  // namespace atelier::data
