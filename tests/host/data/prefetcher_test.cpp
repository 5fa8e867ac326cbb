#include "host/data/prefetcher.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>

#include "atelier/error.h"

#include "support/catch.h"

namespace atelier::data {
namespace {

using namespace std::chrono_literals;

// Returns once `is_true`; the test fails after ten seconds.
template <typename F>
void wait_until(F&& is_true) {
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (!is_true()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(1ms);
  }
}

TEST_CASE("Results come in order, whatever the number of threads", "[prefetcher]") {
  for (const int threads : {0, 1, 3, 8}) {
    for (const int64_t depth : {1, 2, 7}) {
      CAPTURE(threads, depth);
      // Early positions take longer than late ones.
      Prefetcher<std::string> results(threads, depth, 5, 45, [](int64_t position) {
        std::this_thread::sleep_for(std::chrono::microseconds(position % 3 == 0 ? 500 : 0));
        return std::to_string(position);
      });
      for (int64_t position = 5; position < 45; ++position) {
        REQUIRE(results.next() == std::to_string(position));
      }
      REQUIRE_THROWS_AS(results.next(), Error);
    }
  }
}

TEST_CASE("What is made ahead rests on the host", "[prefetcher]") {
  const auto device = memory::make_simulated_device({.capacity = 1000});
  for (const int threads : {0, 2}) {
    Prefetcher<at::Tensor> results(threads, 2, 0, 4,
                                   [](int64_t) { return at::zeros({10'000}, at::kByte); });
    for (int i = 0; i < 4; ++i) CHECK(results.next().numel() == 10'000);
    CHECK(device->stats().peak_bytes == 0);
  }
}

TEST_CASE("Each position is made once, and nothing beyond the depth", "[prefetcher]") {
  std::array<std::atomic<int>, 30> calls{};
  std::atomic<int64_t> furthest = -1;
  Prefetcher<int64_t> results(3, 4, 0, 30, [&](int64_t position) {
    ++calls[static_cast<size_t>(position)];
    int64_t seen = furthest;
    while (seen < position && !furthest.compare_exchange_weak(seen, position)) {
    }
    return position;
  });
  wait_until([&] { return furthest == 3; });
  std::this_thread::sleep_for(20ms);
  REQUIRE(furthest == 3);
  for (int64_t taken = 1; taken <= 30; ++taken) {
    results.next();
    REQUIRE(furthest <= taken + 3);
  }
  for (const auto& count : calls) REQUIRE(count == 1);
}

TEST_CASE("Nothing is made before it is taken when there are no threads", "[prefetcher]") {
  int64_t made = 0;
  Prefetcher<int64_t> results(0, 8, 10, 13, [&](int64_t position) {
    ++made;
    return position;
  });
  REQUIRE(made == 0);
  REQUIRE(results.next() == 10);
  REQUIRE(made == 1);
}

TEST_CASE("An exception comes out at its position and the rest goes on", "[prefetcher]") {
  for (const int threads : {0, 2}) {
    CAPTURE(threads);
    Prefetcher<int64_t> results(threads, 3, 0, 5, [](int64_t position) {
      if (position == 2) throw Error(ErrorCode::kDataLoss, "row 2: the image is cut off");
      if (position == 4) throw std::runtime_error("four");
      return position;
    });
    REQUIRE(results.next() == 0);
    REQUIRE(results.next() == 1);
    REQUIRE_THROWS_WITH(results.next(), Catch::Contains("row 2"));
    REQUIRE(results.next() == 3);
    REQUIRE_THROWS_AS(results.next(), std::runtime_error);
  }
}

TEST_CASE("Results may be of a type that only moves", "[prefetcher]") {
  Prefetcher<std::unique_ptr<int64_t>> results(
      2, 2, 0, 3, [](int64_t position) { return std::make_unique<int64_t>(position); });
  for (int64_t position = 0; position < 3; ++position) REQUIRE(*results.next() == position);
}

TEST_CASE("A prefetcher that is destroyed early waits for calls under way only", "[prefetcher]") {
  std::atomic<int> begun = 0, ended = 0;
  {
    Prefetcher<int> results(2, 100, 0, 100, [&](int64_t) {
      ++begun;
      std::this_thread::sleep_for(30ms);
      ++ended;
      return 0;
    });
    wait_until([&] { return begun == 2; });
  }
  REQUIRE(ended == begun);
  REQUIRE(begun < 50);
  // Threads that wait for room end, too.
  std::atomic<int> made = 0;
  {
    Prefetcher<int> results(4, 1, 0, 100, [&](int64_t) { return ++made; });
    wait_until([&] { return made == 1; });
  }
  REQUIRE(made == 1);
}

TEST_CASE("The time that next() waits is counted", "[prefetcher]") {
  Prefetcher<int> slow(1, 1, 0, 2, [](int64_t) {
    std::this_thread::sleep_for(20ms);
    return 0;
  });
  slow.next();
  slow.next();
  REQUIRE(slow.waited() > 0.015);

  std::atomic<int> made = 0;
  Prefetcher<int> ahead(1, 4, 0, 4, [&](int64_t) { return ++made; });
  wait_until([&] { return made == 4; });
  for (int i = 0; i < 4; ++i) ahead.next();
  REQUIRE(ahead.waited() < 1.0);
  REQUIRE(ahead.waited() >= 0.0);
}

TEST_CASE("An empty range and a depth without room are told", "[prefetcher]") {
  const auto make = [](int64_t position) { return position; };
  Prefetcher<int64_t> empty(2, 2, 7, 7, make);
  REQUIRE_THROWS_AS(empty.next(), Error);
  REQUIRE_THROWS_AS(Prefetcher<int64_t>(1, 0, 0, 5, make), Error);
}

}  // namespace
}  // namespace atelier::data
