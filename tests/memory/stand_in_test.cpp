#include <chrono>
#include <future>
#include <thread>

#include <ATen/Parallel.h>

#include "memory/live_bytes.h"
#include "memory/port.h"
#include "support/tensors.h"

namespace atelier::memory {
namespace {

using at::Tensor;

constexpr int64_t kKiB = 1024;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Copies take a second for 1,000 bytes, on a clock of its own.
struct Timed {
  std::shared_ptr<VirtualClock> clock = std::make_shared<VirtualClock>();
  std::unique_ptr<Port> port = make_stand_in({.bytes_per_second = 1000, .clock = clock});
  Tensor host = port->host_memory(4000), device = port->device_memory(4000);

  Tensor on_host(int64_t bytes) { return host.narrow(0, 0, bytes); }
  Tensor on_device(int64_t bytes) { return device.narrow(0, 0, bytes); }
};

}  // namespace

TEST_CASE("The stand-in counts its memory and keeps to its limit", "[port]") {
  const auto port = make_stand_in({.capacity = 100 * kKiB});
  Tensor first = port->device_memory(60 * kKiB);
  CHECK(reinterpret_cast<uintptr_t>(first.data_ptr()) % 256 == 0);
  CHECK(first.nbytes() == 60 * kKiB);
  const Error full = test::error_of([&] { port->device_memory(41 * kKiB); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "41.0 KiB"));
  CHECK(test::mentions(full, "60.0 KiB of 100.0 KiB"));
  Tensor second = port->device_memory(40 * kKiB);
  CHECK(port->stats().live_bytes == 100 * kKiB);
  first.reset();
  CHECK(port->stats().live_bytes == 40 * kKiB);
  CHECK(port->stats().peak_bytes == 100 * kKiB);
  CHECK(port->stats().capacity == 100 * kKiB);
  Tensor host = port->host_memory(500 * kKiB);
  CHECK(port->stats().host_bytes == 500 * kKiB);
  CHECK(port->stats().live_bytes == 40 * kKiB);
}

TEST_CASE("What LibTorch allocates counts, what rests on the host does not", "[port]") {
  const Tensor before = at::zeros({1 << 20});
  const auto port = make_stand_in({.capacity = 100 * kKiB});
  Tensor activation = at::zeros({20 * kKiB / 4});
  CHECK(port->stats().live_bytes == 20 * kKiB);
  const Error full = test::error_of([&] { (void)at::zeros({100 * kKiB / 4}); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "100.0 KiB more for a tensor"));
  CHECK(port->stats().live_bytes == 20 * kKiB);
  CHECK(test::error_of([&] { port->device_memory(81 * kKiB); }).code() == ErrorCode::kOutOfMemory);
  {
    const HostScope host;
    const Tensor weights = at::zeros({1 << 20});
    CHECK(port->stats().live_bytes == 20 * kKiB);
  }
  std::thread([&] {
    const HostScope host;
    const Tensor batch = at::zeros({1 << 20});
    CHECK(port->stats().live_bytes == 20 * kKiB);
    activation.reset();  // freed elsewhere
  }).join();
  CHECK(port->stats().live_bytes == 0);
  // Measuring beside it counts the same bytes.
  const LiveBytes measured(at::kCPU);
  const Tensor more = at::zeros({10 * kKiB / 4});
  CHECK(measured.now() == 10 * kKiB);
  CHECK(port->stats().live_bytes == 10 * kKiB);
}

TEST_CASE("What other threads of a run allocate counts", "[port]") {
  const auto port = make_stand_in({.capacity = 100 * kKiB});
  Tensor held;
  std::thread([&] {
    held = at::zeros({30 * kKiB / 4});
    CHECK(test::error_of([&] { (void)at::zeros({80 * kKiB / 4}); }).code() ==
          ErrorCode::kOutOfMemory);
  }).join();
  CHECK(port->stats().live_bytes == 30 * kKiB);

  // One of LibTorch's own.
  std::promise<Tensor> made;
  at::launch([&] { made.set_value(at::empty({40 * kKiB}, at::kByte)); });
  const Tensor more = made.get_future().get();
  CHECK(port->stats().live_bytes == 70 * kKiB);
}

TEST_CASE("A limit ends with its port, and memory may outlive it", "[port]") {
  Tensor kept, slot;
  {
    const auto port = make_stand_in({.capacity = 100 * kKiB});
    kept = at::ones({10});
    slot = port->device_memory(kKiB);
  }
  const Tensor large = at::zeros({1 << 20});
  slot.fill_(1);
  CHECK(kept.sum().item<double>() == 10);
}

TEST_CASE("Copies of one direction follow one another, those of the other run beside", "[port]") {
  Timed timed;
  const Ticket first = timed.port->copy_in(timed.on_host(2000), timed.on_device(2000));
  const Ticket second = timed.port->copy_in(timed.on_host(1000), timed.on_device(1000));
  const Ticket out = timed.port->copy_out(timed.on_device(1500), timed.on_host(1500));
  timed.port->compute_after(out);
  CHECK(timed.clock->now() == Approx(1.5));
  timed.port->compute_after(first);
  CHECK(timed.clock->now() == Approx(2.0));
  timed.clock->advance(0.75);  // computing
  timed.port->compute_after(second);
  CHECK(timed.clock->now() == Approx(3.0));
  timed.port->compute_after(second);
  timed.port->compute_after({});
  timed.port->wait(second);
  CHECK(timed.clock->now() == Approx(3.0));
  CHECK(timed.port->stats().waited_seconds == Approx(2.25));
  CHECK(timed.port->stats().bytes_in == 3000);
  CHECK(timed.port->stats().bytes_out == 1500);
}

TEST_CASE("A copy begins when what it comes after is done", "[port]") {
  Timed timed;
  timed.host.fill_(7);
  const Ticket in = timed.port->copy_in(timed.host, timed.device);
  const Tensor back = timed.port->host_memory(4000);
  const Ticket out = timed.port->copy_out(timed.device, back, in);
  timed.port->compute_after(out);
  CHECK(timed.clock->now() == Approx(8.0));
  CHECK(at::equal(back, timed.host));
}

TEST_CASE("A copy takes its time on the wall while the host goes on", "[port]") {
  const auto port = make_stand_in({.bytes_per_second = 2e6});
  const Tensor host = at::ones({100'000}, at::kByte), device = port->device_memory(100'000);
  const double start = seconds_now();
  const Ticket ticket = port->copy_in(host, device);
  const double queued = seconds_now();
  port->compute_after(ticket);
  const double done = seconds_now();
  CHECK(done - start >= 0.05);
  CHECK(at::equal(device, host));
  CHECK(port->stats().waited_seconds > 0);
  CHECK(port->stats().waited_seconds <= done - queued);
}

TEST_CASE("Poisoned memory is NaN until a copy into it is done", "[port]") {
  const auto port = make_stand_in({.bytes_per_second = 16e3, .poison = true});
  const Tensor device = port->device_memory(4096).view(at::kFloat);
  CHECK(at::isnan(device).all().item<bool>());
  device.zero_();
  const Tensor host = at::rand({1024});
  const Ticket ticket = port->copy_in(host, device);  // takes a quarter of a second
  CHECK(at::isnan(device).all().item<bool>());
  port->wait(ticket);
  CHECK(at::equal(device, host));
}

TEST_CASE("Many copies keep their order and their values, whatever their layout", "[port]") {
  const auto port = make_stand_in({.poison = true});
  const Tensor device = at::zeros({64, 32});
  std::vector<Tensor> values;
  Ticket last;
  for (int i = 0; i < 200; ++i) {
    values.push_back(at::rand({32, 64}).t());
    last = port->copy_in(values.back(), device);
  }
  port->wait(last);
  CHECK(at::equal(device, values.back()));
  CHECK(test::error_of([&] { port->copy_in(device, device[0]); }).code() == ErrorCode::kInternal);
  CHECK(test::error_of([&] { port->copy_in(device, device.to(at::kDouble)); }).code() ==
        ErrorCode::kInternal);
}

TEST_CASE("The CPU's port has no limit and copies at the speed of memory", "[port]") {
  const auto port = make_port(at::kCPU);
  CHECK(port->device().is_cpu());
  CHECK(port->stats().capacity == INT64_MAX);
  const Tensor host = at::rand({1000}), device = port->device_memory(4000).view(at::kFloat);
  port->compute_after(port->copy_in(host, device, port->computed()));
  CHECK(at::equal(host, device));
}

}  // namespace atelier::memory
