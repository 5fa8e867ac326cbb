#include "host/data/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/transfer_device.h"

namespace atelier::data {

void for_each_in_parallel(size_t count, const std::function<void(size_t)>& run) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t failed = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        run(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
        next = count;  // those below `i` have begun
      }
    }
  };
  {
    const size_t wanted =
        std::min<size_t>(count, std::max(1u, std::thread::hardware_concurrency()));
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < wanted; ++i) {
      threads.emplace_back([&] {
        const memory::HostScope host;
        work();
      });
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace atelier::data
