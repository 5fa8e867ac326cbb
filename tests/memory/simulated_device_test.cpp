#include <chrono>
#include <future>
#include <thread>

#include <ATen/Parallel.h>

#include "memory/live_bytes.h"
#include "memory/transfer_device.h"
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
  std::unique_ptr<TransferDevice> transfer =
      make_simulated_device({.bytes_per_second = 1000, .clock = clock});
  Tensor host = transfer->host_memory(4000), device = transfer->device_memory(4000);

  Tensor on_host(int64_t bytes) { return host.narrow(0, 0, bytes); }
  Tensor on_device(int64_t bytes) { return device.narrow(0, 0, bytes); }
};

}  // namespace

TEST_CASE("The simulated device counts its memory and keeps to its limit", "[transfer]") {
  const auto transfer = make_simulated_device({.capacity = 100 * kKiB});
  Tensor first = transfer->device_memory(60 * kKiB);
  CHECK(reinterpret_cast<uintptr_t>(first.data_ptr()) % 256 == 0);
  CHECK(first.nbytes() == 60 * kKiB);
  const Error full = test::error_of([&] { transfer->device_memory(41 * kKiB); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "41.0 KiB"));
  CHECK(test::mentions(full, "60.0 KiB of 100.0 KiB"));
  Tensor second = transfer->device_memory(40 * kKiB);
  CHECK(transfer->stats().live_bytes == 100 * kKiB);
  first.reset();
  CHECK(transfer->stats().live_bytes == 40 * kKiB);
  CHECK(transfer->stats().peak_bytes == 100 * kKiB);
  CHECK(transfer->stats().capacity == 100 * kKiB);
  Tensor host = transfer->host_memory(500 * kKiB);
  CHECK(transfer->stats().host_bytes == 500 * kKiB);
  CHECK(transfer->stats().live_bytes == 40 * kKiB);
}

TEST_CASE("What LibTorch allocates counts, what rests on the host does not", "[transfer]") {
  const Tensor before = at::zeros({1 << 20});
  const auto transfer = make_simulated_device({.capacity = 100 * kKiB});
  Tensor activation = at::zeros({20 * kKiB / 4});
  CHECK(transfer->stats().live_bytes == 20 * kKiB);
  const Error full = test::error_of([&] { (void)at::zeros({100 * kKiB / 4}); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "100.0 KiB more for a tensor"));
  CHECK(transfer->stats().live_bytes == 20 * kKiB);
  CHECK(test::error_of([&] { transfer->device_memory(81 * kKiB); }).code() ==
        ErrorCode::kOutOfMemory);
  {
    const HostScope host;
    const Tensor weights = at::zeros({1 << 20});
    CHECK(transfer->stats().live_bytes == 20 * kKiB);
  }
  std::thread([&] {
    const HostScope host;
    const Tensor batch = at::zeros({1 << 20});
    CHECK(transfer->stats().live_bytes == 20 * kKiB);
    activation.reset();  // freed elsewhere
  }).join();
  CHECK(transfer->stats().live_bytes == 0);
  // Measuring beside it counts the same bytes.
  const LiveBytes measured(at::kCPU);
  const Tensor more = at::zeros({10 * kKiB / 4});
  CHECK(measured.now() == 10 * kKiB);
  CHECK(transfer->stats().live_bytes == 10 * kKiB);
}

TEST_CASE("What other threads of a run allocate counts", "[transfer]") {
  const auto transfer = make_simulated_device({.capacity = 100 * kKiB});
  Tensor held;
  std::thread([&] {
    held = at::zeros({30 * kKiB / 4});
    CHECK(test::error_of([&] { (void)at::zeros({80 * kKiB / 4}); }).code() ==
          ErrorCode::kOutOfMemory);
  }).join();
  CHECK(transfer->stats().live_bytes == 30 * kKiB);

  // One of LibTorch's own.
  std::promise<Tensor> made;
  at::launch([&] { made.set_value(at::empty({40 * kKiB}, at::kByte)); });
  const Tensor more = made.get_future().get();
  CHECK(transfer->stats().live_bytes == 70 * kKiB);
}

TEST_CASE("A limit ends with its transfer, and memory may outlive it", "[transfer]") {
  Tensor kept, slot;
  {
    const auto transfer = make_simulated_device({.capacity = 100 * kKiB});
    kept = at::ones({10});
    slot = transfer->device_memory(kKiB);
  }
  const Tensor large = at::zeros({1 << 20});
  slot.fill_(1);
  CHECK(kept.sum().item<double>() == 10);
}

TEST_CASE("Copies of one direction follow one another, those of the other run beside",
          "[transfer]") {
  Timed timed;
  const Ticket first = timed.transfer->copy_in(timed.on_host(2000), timed.on_device(2000));
  const Ticket second = timed.transfer->copy_in(timed.on_host(1000), timed.on_device(1000));
  const Ticket out = timed.transfer->copy_out(timed.on_device(1500), timed.on_host(1500));
  timed.transfer->compute_after(out);
  CHECK(timed.clock->now() == Approx(1.5));
  timed.transfer->compute_after(first);
  CHECK(timed.clock->now() == Approx(2.0));
  timed.clock->advance(0.75);  // computing
  timed.transfer->compute_after(second);
  CHECK(timed.clock->now() == Approx(3.0));
  timed.transfer->compute_after(second);
  timed.transfer->compute_after({});
  timed.transfer->wait(second);
  CHECK(timed.clock->now() == Approx(3.0));
  CHECK(timed.transfer->stats().waited_seconds == Approx(2.25));
  CHECK(timed.transfer->stats().bytes_in == 3000);
  CHECK(timed.transfer->stats().bytes_out == 1500);
}

TEST_CASE("A copy begins when what it comes after is done", "[transfer]") {
  Timed timed;
  timed.host.fill_(7);
  const Ticket in = timed.transfer->copy_in(timed.host, timed.device);
  const Tensor back = timed.transfer->host_memory(4000);
  const Ticket out = timed.transfer->copy_out(timed.device, back, in);
  timed.transfer->compute_after(out);
  CHECK(timed.clock->now() == Approx(8.0));
  CHECK(at::equal(back, timed.host));
}

TEST_CASE("A copy takes its time on the wall while the host goes on", "[transfer]") {
  const auto transfer = make_simulated_device({.bytes_per_second = 2e6});
  const Tensor host = at::ones({100'000}, at::kByte), device = transfer->device_memory(100'000);
  const double start = seconds_now();
  const Ticket ticket = transfer->copy_in(host, device);
  const double queued = seconds_now();
  transfer->compute_after(ticket);
  const double done = seconds_now();
  CHECK(done - start >= 0.05);
  CHECK(at::equal(device, host));
  CHECK(transfer->stats().waited_seconds > 0);
  CHECK(transfer->stats().waited_seconds <= done - queued);
}

TEST_CASE("Poisoned memory is NaN until a copy into it is done", "[transfer]") {
  const auto transfer = make_simulated_device({.bytes_per_second = 16e3, .poison = true});
  const Tensor device = transfer->device_memory(4096).view(at::kFloat);
  CHECK(at::isnan(device).all().item<bool>());
  device.zero_();
  const Tensor host = at::rand({1024});
  const Ticket ticket = transfer->copy_in(host, device);  // takes a quarter of a second
  CHECK(at::isnan(device).all().item<bool>());
  transfer->wait(ticket);
  CHECK(at::equal(device, host));
}

TEST_CASE("Many copies keep their order and their values, whatever their layout", "[transfer]") {
  const auto transfer = make_simulated_device({.poison = true});
  const Tensor device = at::zeros({64, 32});
  std::vector<Tensor> values;
  Ticket last;
  for (int i = 0; i < 200; ++i) {
    values.push_back(at::rand({32, 64}).t());
    last = transfer->copy_in(values.back(), device);
  }
  transfer->wait(last);
  CHECK(at::equal(device, values.back()));
  CHECK(test::error_of([&] { transfer->copy_in(device, device[0]); }).code() ==
        ErrorCode::kInternal);
  CHECK(test::error_of([&] { transfer->copy_in(device, device.to(at::kDouble)); }).code() ==
        ErrorCode::kInternal);
}

TEST_CASE("The CPU's transfer has no limit and copies at the speed of memory", "[transfer]") {
  const auto transfer = make_transfer_device(at::kCPU);
  CHECK(transfer->device().is_cpu());
  CHECK(transfer->stats().capacity == INT64_MAX);
  const Tensor host = at::rand({1000}), device = transfer->device_memory(4000).view(at::kFloat);
  transfer->compute_after(transfer->copy_in(host, device, transfer->computed()));
  CHECK(at::equal(host, device));
}

}  // namespace atelier::memory
