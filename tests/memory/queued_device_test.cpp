// Queued devices themselves: what they compute, what they find, and what they refuse.
#include "support/queued_device.h"

#include <thread>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "support/tensors.h"

namespace atelier::test {
namespace {

using at::Tensor;
using Catch::Contains;

const std::vector<std::string> kNone = {};

c10::impl::VirtualGuardImpl guard() {
  return {at::kPrivateUse1};
}

c10::Stream new_stream(int device = 0) {
  return guard().getStreamFromGlobalPool(queued_device(device));
}

c10::Event event_on(const c10::Stream& stream) {
  c10::Event event(at::kPrivateUse1);
  event.record(stream);
  return event;
}

// Host memory that counts as pinned.
Tensor pinned(int64_t count, float value) {
  auto* const data = new float[static_cast<size_t>(count)];
  return at::from_blob(data, {count}, [data](void*) { delete[] data; }).fill_(value);
}

// Twice what a copy on another stream brings; `waits`: for it.
Tensor copied_and_doubled(bool waits) {
  const Tensor host = pinned(100, 3);
  const Tensor device = at::empty({100}, at::TensorOptions(queued_device()));
  const c10::Stream copies = new_stream(), computing = guard().getStream(queued_device());
  event_on(computing).block(copies);
  {
    const c10::StreamGuard on_copies(copies);
    device.copy_(host, /*non_blocking=*/true);
  }
  device.record_stream(copies);
  if (waits) event_on(copies).block(computing);
  const Tensor doubled = (device * 2).cpu();
  guard().synchronizeDevice(0);  // before the host's memory goes
  return doubled;
}

}  // namespace

TEST_CASE("A queued device computes what the CPU does, and its gradients", "[queued]") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const QueuedDevices devices({.seed = seed});
    const auto step = [](at::Device device) {
      const Tensor x = seeded({4, 8}).to(device), w = trained(seeded({8, 8}, 2).to(device));
      const Tensor y = at::gelu(at::mm(x, w)).add_(1).t().contiguous();
      const Tensor loss = (at::softmax(y, -1) * at::cat({y, y}).narrow(0, 2, 8)).sum();
      return Tensors{loss.detach().cpu(), torch::autograd::grad({loss}, {w})[0].cpu()};
    };
    CHECK(same_bits(step(queued_device(1)), step(at::kCPU)));
    CHECK(devices.faults() == kNone);
    CHECK(devices.opened() == std::set{1});
  }
}

TEST_CASE("A copy that nobody waits for is found, and its values are wrong in some orders",
          "[queued]") {
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool waits : {true, false}) {
      const QueuedDevices devices({.seed = seed});
      const bool is_right = (copied_and_doubled(waits) == 6).all().item<bool>();
      const auto faults = devices.faults();
      if (waits) {
        CHECK(is_right);
        CHECK(faults == kNone);
        continue;
      }
      wrong += !is_right;
      REQUIRE_FALSE(faults.empty());
      CHECK_THAT(faults[0], Contains("aten::mul on stream 0 of device 0 reads memory") &&
                                Contains("aten::copy_ on stream ") && Contains("does not wait"));
    }
  }
  CHECK(wrong > 0);
  CHECK(wrong < 20);
}

TEST_CASE("Memory that is freed while a stream may use it is found, or waits when that was said",
          "[queued]") {
  for (const bool is_said : {true, false}) {
    const QueuedDevices devices({.eagerness = 0});
    Tensor t = at::ones({1000}, at::TensorOptions(queued_device()));
    const void* const place = t.data_ptr();
    const c10::Stream other = new_stream(), computing = guard().getStream(queued_device());
    event_on(computing).block(other);
    Tensor sum;
    {
      const c10::StreamGuard on_other(other);
      sum = t.sum();
    }
    if (is_said) t.record_stream(other);
    t.reset();
    if (!is_said) {
      REQUIRE(devices.faults().size() == 1);
      CHECK_THAT(devices.faults()[0], Contains("memory of stream 0 of device 0 is freed while") &&
                                          Contains("record_stream()"));
      event_on(other).block(computing);
      continue;
    }
    // Another tensor has the place when the other stream is done.
    const auto takes = [] { return at::empty({1000}, at::TensorOptions(queued_device())); };
    CHECK(takes().data_ptr() != place);
    guard().synchronizeStream(other);
    const Tensor first = takes(), second = takes();
    CHECK((first.data_ptr() == place || second.data_ptr() == place));
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("Host memory that is gone before its copy is found", "[queued]") {
  const QueuedDevices devices({.eagerness = 0});
  const Tensor device = at::empty({10}, at::TensorOptions(queued_device()));
  device.copy_(pinned(10, 1), /*non_blocking=*/true);
  CHECK(devices.faults() == kNone);
  guard().synchronizeDevice(0);
  REQUIRE(devices.faults().size() == 1);
  CHECK_THAT(devices.faults()[0], Contains("host memory is freed before a copy of stream 0"));
  // Pageable memory was read at once, and pinned memory of LibTorch waits.
  device.copy_(at::full({10}, 2.0), /*non_blocking=*/true);
  CHECK((device.cpu() == 2).all().item<bool>());
  device.copy_(at::full({10}, 3.0).pin_memory(), /*non_blocking=*/true);
  CHECK((device.cpu() == 3).all().item<bool>());
  CHECK(devices.faults().size() == 1);
}

TEST_CASE("What the host waits for is counted, or refused", "[queued]") {
  QueuedDevices devices;
  const Tensor t = at::ones({3}, at::TensorOptions(queued_device()));
  CHECK(devices.waits().empty());
  CHECK(t.sum().item<float>() == 3);
  CHECK(devices.count(Wait::kValue) == 1);
  CHECK(t.nonzero().size(0) == 3);
  CHECK(devices.count(Wait::kValue) == 2);
  CHECK(t.cpu().sum().item<float>() == 3);
  CHECK(devices.count(Wait::kCopy) == 1);
  event_on(guard().getStream(queued_device())).synchronize();
  CHECK(devices.count(Wait::kEvent) == 1);
  at::accelerator::synchronizeDevice(0);
  CHECK(devices.count(Wait::kDevice) == 1);

  devices.refuse({Wait::kValue, Wait::kCopy});
  CHECK_THROWS_WITH(t.sum().item(), Contains("waits for the device: aten::_local_scalar_dense"));
  CHECK_THROWS_WITH(t.cpu(), Contains("a copy from device 0"));
  CHECK_NOTHROW(t.copy_(at::ones({3}), /*non_blocking=*/true));
  CHECK(devices.faults() == kNone);
}

TEST_CASE("Devices do not take each other's tensors and events", "[queued]") {
  const QueuedDevices devices;
  const Tensor zero = at::ones({3}, at::TensorOptions(queued_device(0)));
  const Tensor one = at::ones({3}, at::TensorOptions(queued_device(1)));
  CHECK_THROWS_WITH(at::add(zero, one), Contains("same device") || Contains("tensors are on"));
  CHECK_THROWS_WITH(at::add(zero, at::ones({3})),
                    Contains("same device") || Contains("a tensor is on"));
  CHECK((zero + one.to(queued_device(0))).sum().item<float>() == 6);
  c10::Event event = event_on(guard().getStream(queued_device(1)));
  CHECK_THROWS_WITH(event.record(guard().getStream(queued_device(0))),
                    Contains("an event of device 1 is recorded on stream 0 of device 0"));
  event.block(guard().getStream(queued_device(0)));  // which CUDA allows
  c10::Event(at::kPrivateUse1).block(guard().getStream(queued_device(0)));
  const Tensor bytes = at::empty({9}, zero.options().dtype(at::kByte));
  const Tensor odd = at::from_blob(static_cast<char*>(bytes.data_ptr()) + 1, {2}, zero.options());
  CHECK_THROWS_WITH(odd.add_(1), Contains("misaligned"));
  CHECK(devices.faults() == kNone);
}

TEST_CASE("A thread that never chose a device opens the first one when it asks an event",
          "[queued]") {
  for (const bool chooses : {true, false}) {
    const QueuedDevices devices({.closed = {0}});
    std::thread([&] {
      const c10::Event event = event_on(guard().getStream(queued_device(1)));
      if (chooses) {
        const c10::DeviceGuard here(queued_device(1));
        event.synchronize();
      } else {
        event.synchronize();
      }
    }).join();
    CHECK(devices.opened().contains(0) != chooses);
    REQUIRE(devices.faults().size() == (chooses ? 0 : 1));
    if (!chooses) CHECK_THAT(devices.faults()[0], Contains("an event is waited for on device 0"));
  }
}

TEST_CASE("A queued device counts its memory, keeps what is freed, and ends", "[queued]") {
  const QueuedDevices devices({.capacity = 10 * 512});
  const auto take = [](int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(queued_device()).dtype(at::kByte));
  };
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = [] { return at::accelerator::getDeviceStats(0); };
  Tensor a = take(600), b = take(1);
  CHECK(stats().allocated_bytes[kAll].current == 3 * 512);
  a.reset();
  CHECK(stats().allocated_bytes[kAll].current == 512);
  CHECK(stats().allocated_bytes[kAll].peak == 3 * 512);
  CHECK(stats().reserved_bytes[kAll].current == 3 * 512);
  a = take(1000);
  CHECK(stats().reserved_bytes[kAll].current == 3 * 512);
  a.reset();
  const Tensor most = take(9 * 512);
  CHECK_THROWS_AS(take(1), c10::OutOfMemoryError);
  CHECK(at::accelerator::getMemoryInfo(0) == std::pair<size_t, size_t>{0, 10 * 512});
}

TEST_CASE("Random numbers of a queued device are those of its seed, in any order", "[queued]") {
  Tensor first;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const QueuedDevices devices({.seed = seed});
    at::manual_seed(11);
    const at::TensorOptions options(queued_device());
    const Tensor x = at::randn({50}, options);
    const Tensor y = at::dropout(x, 0.5, true) + at::rand({50}, options);
    if (!first.defined()) first = y.cpu();
    CHECK(at::equal(y.cpu(), first));
  }
}

}  // namespace atelier::test
