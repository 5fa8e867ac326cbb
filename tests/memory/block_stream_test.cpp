#include "memory/block_stream.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>

#include "support/files.h"

namespace atelier::memory {
namespace {

// A simulated device whose wait() stops until the gate is open.
class GatedPort final : public TransferDevice {
 public:
  void open() { gate_.set_value(); }

  at::Device device() const override { return inner_->device(); }
  at::Tensor device_memory(int64_t bytes) override { return inner_->device_memory(bytes); }
  at::Tensor host_memory(int64_t bytes) override { return inner_->host_memory(bytes); }
  at::Tensor pin(std::shared_ptr<void> memory, int64_t bytes) override {
    return inner_->pin(std::move(memory), bytes);
  }
  Ticket copy_in(const at::Tensor& from, const at::Tensor& to, const Ticket& after) override {
    return inner_->copy_in(from, to, after);
  }
  Ticket copy_out(const at::Tensor& from, const at::Tensor& to, const Ticket& after) override {
    return inner_->copy_out(from, to, after);
  }
  Ticket exchange(const std::function<std::function<void()>()>& begin, const at::Tensor& to,
                  const Ticket& after) override {
    return inner_->exchange(begin, to, after);
  }
  Ticket computed() override { return inner_->computed(); }
  void compute_after(const Ticket& ticket) override { inner_->compute_after(ticket); }
  void wait(const Ticket& ticket) override {
    opened_.wait();
    inner_->wait(ticket);
  }
  Stats stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<TransferDevice> inner_ = make_simulated_device({});
  std::promise<void> gate_;
  std::shared_future<void> opened_ = gate_.get_future();
};

// A block that is read from a tensor, not copied from a slab.
BlockStream::Source source(std::string name, const at::Tensor& value) {
  SlabLayout layout;
  const SlabSlice slice = layout.add(value);
  return {std::move(name), layout.bytes(), {}, {{slice, value}}};
}

// Waits until another thread has come as far as `is_there` says.
void wait_until(const std::function<bool()>& is_there) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_there() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  CHECK(is_there());
}

}  // namespace

TEST_CASE("A block that is waited for is given up when its stream closes", "[residency]") {
  GatedPort transfer;
  const at::Tensor value = at::ones({64});
  const auto stream = BlockStream::make(transfer, /*blocks=*/2, /*slots=*/1, /*slot_bytes=*/256);
  stream->start({source("blocks.0", value), source("blocks.1", value)});
  auto held = std::async(std::launch::async, [&] { return stream->hold(1); });
  // It counts as late with the lock that it gives up by waiting: who reads that finds it waiting.
  wait_until([&] { return stream->stats().late == 1; });
  auto closed = std::async(std::launch::async, [&] { stream->close(); });
  const auto status = held.wait_for(std::chrono::seconds(20));
  transfer.open();
  REQUIRE(status == std::future_status::ready);
  test::expect_error(ErrorCode::kInternal, {"blocks.1"}, [&] { held.get(); });
  closed.get();
  test::expect_error(ErrorCode::kInternal, {"blocks.0"}, [&] { stream->hold(0); });
  CHECK(at::equal(stream->fetch(value), value));
}

TEST_CASE("A stream that closes leaves the transfer to the calls that use it", "[residency]") {
  // Blocks are held and let go while the stream closes: each call has the transfer or an error.
  for (int round = 0; round < 50; ++round) {
    const std::unique_ptr<TransferDevice> transfer = make_simulated_device({});
    const at::Tensor value = at::ones({64});
    const auto stream = BlockStream::make(*transfer, /*blocks=*/3, /*slots=*/2, /*slot_bytes=*/256);
    stream->start({source("0", value), source("1", value), source("2", value)});
    std::atomic<int64_t> holds = 0, fetches = 0;
    auto holder = std::async(std::launch::async, [&] {
      for (;; ++holds) stream->hold(holds % 3);
    });
    auto fetcher = std::async(std::launch::async, [&] {
      for (; fetches < 20; ++fetches) stream->fetch(value);
    });
    wait_until([&] { return holds > round % 5 && fetches > round % 7; });
    stream->close();
    test::expect_error(ErrorCode::kInternal, {"is wanted while its weights leave"},
                       [&] { holder.get(); });
    fetcher.get();
  }
}

}  // namespace atelier::memory
