#include <limits>

#include "atelier/error.h"

#include "memory/activation_runner.h"
#include "memory/device_meter.h"
#include "memory/direct.h"
#include "memory/live_bytes.h"
#include "memory/toy_net.h"

namespace atelier::memory {
namespace {

using test::direct;
using test::Net;
using test::Train;

// What LibTorch allocates while it lives is bounded.
class Limited {
 public:
  explicit Limited(int64_t capacity) : limit_(std::make_shared<MemoryLimit>(capacity)) {
    MemoryLimit::apply(limit_);
  }
  ~Limited() { MemoryLimit::apply(nullptr); }
  int64_t peak() const { return limit_->peak(); }

 private:
  std::shared_ptr<MemoryLimit> limit_;
};

struct Outcome {
  Tensors gradients;  // empty: it did not fit
  int tightened = 0;
};

// A pass as often as it takes, with less each time.
Outcome fit(Net& net, ActivationRunner& runner) {
  Outcome outcome;
  while (true) {
    runner.begin_pass();
    try {
      outcome.gradients = net.step(runner);
      return outcome;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
    }
    if (!runner.tighten()) return outcome;
    ++outcome.tightened;
  }
}

int64_t peak_of(Net& net, BlockRunner& runner) {
  const Limited limit(std::numeric_limits<int64_t>::max());
  net.step(runner);
  return limit.peak();
}

TEST_CASE("A pass that does not fit is made again with less, to the same bits", "[plan]") {
  for (const double dropout : {0.0, 0.1}) {
    Net net(Train::kAdapters, dropout, 12);
    const Tensors want = net.step(direct);
    const int64_t whole = peak_of(net, direct);
    RecomputeRunner recomputing(direct);
    const int64_t least = peak_of(net, recomputing);
    REQUIRE(least < whole * 2 / 3);
    for (const char* text : {"none", "1", "auto"}) {
      int most_tightened = 0;
      for (int i = 0; i <= 6; ++i) {
        const int64_t capacity = least + (whole - least) * i / 6 + least / 10;
        CAPTURE(text, dropout, i, capacity);
        ActivationRunner runner(direct, parse_activation_budget(text), at::kCPU);
        const Limited limit(capacity);
        for (int pass = 0; pass < 3; ++pass) {
          const Outcome outcome = fit(net, runner);
          CHECK(test::same_bits(outcome.gradients, want));
          most_tightened = std::max(most_tightened, outcome.tightened);
        }
        CHECK(limit.peak() <= capacity);
      }
      CHECK(most_tightened >= 2);
    }
  }
}

TEST_CASE("When nothing is left to tighten it is said", "[plan]") {
  Net net(Train::kAdapters, 0.0, 6);
  RecomputeRunner recomputing(direct);
  const int64_t least = peak_of(net, recomputing);
  for (const char* text : {"none", "1", "full", "auto", "1GiB"}) {
    ActivationRunner runner(direct, parse_activation_budget(text), at::kCPU);
    const Limited limit(least / 2);
    const Outcome outcome = fit(net, runner);
    CHECK(outcome.gradients.empty());
    CHECK(outcome.tightened <= 3);
    CHECK_FALSE(runner.tighten());
  }
}

TEST_CASE("A meter counts what a simulated device does, or for itself where there is none",
          "[plan]") {
  {
    const DeviceMeter meter(at::kCPU, nullptr);
    const int64_t before = meter.bytes().live;
    const at::Tensor held = at::empty({1000}, at::kByte);
    { const at::Tensor gone = at::empty({5000}, at::kByte); }
    CHECK(meter.bytes().live == before + 1000);
    CHECK(meter.bytes().peak == before + 6000);
    CHECK(meter.bytes().capacity == 0);
  }
  CHECK(MemoryLimit::applied() == nullptr);
  const auto transfer = make_simulated_device({.capacity = 10000});
  const DeviceMeter meter(at::kCPU, transfer.get());
  const at::Tensor held = at::empty({4000}, at::kByte), buffer = transfer->device_memory(3000);
  CHECK_THROWS_AS(at::empty({3001}, at::kByte), Error);
  CHECK(meter.bytes().live == 7000);
  CHECK(meter.bytes().capacity == 10000);
  CHECK(meter.bytes().when_refused == 7000);
  CHECK(resident_host_bytes() > 0);
}

}  // namespace
}  // namespace atelier::memory
