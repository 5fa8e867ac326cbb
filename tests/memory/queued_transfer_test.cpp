// What copies beside the computing, on devices that are as asynchronous as a GPU.
#include <algorithm>
#include <random>
#include <thread>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include "memory/activation_runner.h"
#include "memory/cuda_transfer_device.h"
#include "memory/device_meter.h"
#include "memory/direct.h"
#include "memory/live_bytes.h"
#include "memory/matrices.h"
#include "memory/residency.h"
#include "memory/staging_ring.h"
#include "memory/toy_net.h"
#include "support/queued_device.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using ops::ActionPlan;
using test::direct;
using test::kOperators;
using test::Net;
using test::queued_device;
using test::QueuedDevices;
using test::Train;
using test::Wait;

const std::vector<std::string> kNone = {};
constexpr uint64_t kOrders = 20;

std::unique_ptr<TransferDevice> transfer_of(int device) {
  return make_cuda_transfer_device(queued_device(device));
}

std::vector<Block*> blocks_of(Net& net) {
  std::vector<Block*> result;
  for (auto& block : net.blocks) result.push_back(block.get());
  return result;
}

// Weights as they are loaded: on the host, or where blocks stay.
void load(Net& net, const ResidencyPlan& plan, at::Device device) {
  for (size_t i = 0; i < net.blocks.size(); ++i) {
    net.blocks[i]->visit_weights([&](const std::string&, Weight& weight) {
      weight.set(weight.draw().to(plan.blocks[i] == Place::kDevice ? device : at::kCPU));
    });
  }
}

Tensors on_host(Tensors tensors) {
  for (Tensor& t : tensors) {
    if (t.defined()) t = t.cpu();
  }
  return tensors;
}

// A transfer that leaves out one kind of waiting.
class Careless final : public TransferDevice {
 public:
  enum class Forgets { kComputing, kCopies, kHost };
  Careless(int device, Forgets what) : inner_(transfer_of(device)), forgets_(what) {}

  at::Device device() const override { return inner_->device(); }
  Tensor device_memory(int64_t bytes) override { return inner_->device_memory(bytes); }
  Tensor host_memory(int64_t bytes) override { return inner_->host_memory(bytes); }
  Tensor pin(std::shared_ptr<void> memory, int64_t bytes) override {
    return inner_->pin(std::move(memory), bytes);
  }
  Ticket copy_in(const Tensor& from, const Tensor& to, const Ticket& after) override {
    return inner_->copy_in(from, to, forgets_ == Forgets::kCopies ? Ticket() : after);
  }
  Ticket copy_out(const Tensor& from, const Tensor& to, const Ticket& after) override {
    return inner_->copy_out(from, to, forgets_ == Forgets::kCopies ? Ticket() : after);
  }
  Ticket exchange(const std::function<std::function<void()>()>& begin, const Tensor& to,
                  const Ticket& after) override {
    return inner_->exchange(begin, to, after);
  }
  Ticket computed() override { return inner_->computed(); }
  void compute_after(const Ticket& ticket) override {
    if (forgets_ != Forgets::kComputing) inner_->compute_after(ticket);
  }
  void wait(const Ticket& ticket) override {
    if (forgets_ != Forgets::kHost) inner_->wait(ticket);
  }
  Stats stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<TransferDevice> inner_;
  Forgets forgets_;
};

// A network on a device whose blocks stream, and whose outputs wait on the host.
struct Moving {
  static constexpr int kBlocks = 5;
  Net net;
  std::unique_ptr<TransferDevice> transfer;
  std::shared_ptr<Offloader> offloader;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<StreamingRunner> streaming;
  std::unique_ptr<RecomputeRunner> runner;

  Moving(int device, Place others, std::unique_ptr<TransferDevice> by = nullptr)
      : net(Train::kAdapters, 0.1, kBlocks, /*leased=*/false, queued_device(device)),
        transfer(by ? std::move(by) : transfer_of(device)),
        offloader(std::make_shared<Offloader>(*transfer, int64_t{1} << 20)) {
    const ResidencyPlan plan = spread_residents(kBlocks, 1, others, /*prefetch=*/1);
    load(net, plan, queued_device(device));
    residency = std::make_unique<Residency>(blocks_of(net), plan, *transfer);
    streaming = std::make_unique<StreamingRunner>(direct, std::vector{residency.get()});
    runner = std::make_unique<RecomputeRunner>(
        *streaming, [](const Block&) { return ActionPlan(kOperators, Action::kOffload); },
        RecomputeOptions{.offloader = offloader});
  }
  Tensors step() { return on_host(net.step(*runner)); }
};

int64_t taken_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(1).allocated_bytes[kAll].current;
}

// What a step gives on a device where all is there.
Tensors plain_step() {
  const QueuedDevices devices;
  Net net(Train::kAdapters, 0.1, Moving::kBlocks, /*leased=*/false, queued_device(1));
  return on_host(net.step(direct));
}

}  // namespace

TEST_CASE("Copies come and go in order, whatever the order of streams", "[queued]") {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    const QueuedDevices devices({.seed = seed, .closed = {0}});
    const auto transfer = transfer_of(1);
    const Tensor from = transfer->host_memory(4000), to = transfer->host_memory(4000);
    Tensor slot = transfer->device_memory(4000);
    for (int i = 0; i < 4; ++i) {
      from.fill_(i);
      const Ticket came = transfer->copy_in(from, slot, transfer->computed());
      transfer->compute_after(came);
      slot.add_(1);
      const Ticket left = transfer->copy_out(slot, to, transfer->computed());
      transfer->wait(left);
      CHECK((to == i + 1).all().item<bool>());
    }
    CHECK(transfer->stats().live_bytes == 4096);
    slot.reset();
    CHECK(transfer->stats().live_bytes == 0);
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("Memory that a copy uses may be let go at once", "[queued]") {
  const QueuedDevices devices({.eagerness = 0});
  const auto transfer = transfer_of(1);
  Tensor from = transfer->host_memory(1000), slot = transfer->device_memory(1000);
  from.fill_(3);
  const Ticket came = transfer->copy_in(from, slot, transfer->computed());
  from.reset();
  transfer->compute_after(came);
  const Tensor twice = slot * 2;
  const Tensor to = transfer->host_memory(1000);
  const Ticket left = transfer->copy_out(slot, to, transfer->computed());
  slot.reset();
  const Tensor next = at::zeros({1000}, twice.options());  // may have its place
  transfer->wait(left);
  CHECK((to == 3).all().item<bool>());
  CHECK((twice == 6).all().item<bool>());
  CHECK(devices.faults() == kNone);
}

TEST_CASE("A staging ring fills one part while the other is on its way to a device", "[queued]") {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    const QueuedDevices devices({.seed = seed, .closed = {0}});
    const auto transfer = transfer_of(1);
    StagingRing ring(*transfer, 256);
    Tensors arrived, read;
    for (int i = 0; i < 6; ++i) {
      arrived.push_back(transfer->device_memory(200));
      std::memset(ring.take(arrived.back()), i + 1, 200);
      ring.send();
      read.push_back(arrived.back() * 2);
    }
    ring.wait();
    for (size_t i = 0; i < arrived.size(); ++i) {
      const auto value = static_cast<int64_t>(i + 1);
      CHECK((arrived[i].cpu() == value).all().item<bool>());
      CHECK((read[i].cpu() == 2 * value).all().item<bool>());
    }
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("Blocks that stream to a device compute the same bits in any order", "[queued]") {
  constexpr int kBlocks = 5;
  Tensors want;
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    // Under some orders nothing runs before it is waited for.
    const QueuedDevices devices(
        {.seed = seed, .eagerness = seed % 4 < 2 ? 0.0 : 0.5, .closed = {0}});
    Net net(Train::kAdapters, 0.1, kBlocks, /*leased=*/false, queued_device(1));
    if (want.empty()) want = on_host(net.step(direct));
    const Place others = seed % 2 == 0 ? Place::kHost : Place::kDisk;
    const ResidencyPlan plan = spread_residents(kBlocks, 1, others, /*prefetch=*/1);
    load(net, plan, queued_device(1));
    const auto transfer = transfer_of(1);
    Residency residency(blocks_of(net), plan, *transfer);
    StreamingRunner streaming(direct, {&residency});
    RecomputeRunner recompute(streaming);
    for (int step = 0; step < 2; ++step) CHECK(test::same_bits(on_host(net.step(recompute)), want));
    CHECK(residency.stats().copies > kBlocks);
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("Blocks from disk come through two stagings, however late they are copied", "[queued]") {
  for (const double eagerness : {0.0, 0.2}) {
    const QueuedDevices devices({.eagerness = eagerness, .closed = {0}});
    test::Matrices net(6);
    const auto transfer = transfer_of(1);
    Residency residency(net.all(), spread_residents(6, 0, Place::kDisk, /*prefetch=*/1), *transfer);
    StreamingRunner runner(direct, {&residency});
    const Tensor x = net.x.to(queued_device(1));
    Tensors products;
    for (int pass = 0; pass < 3; ++pass) {
      for (const auto& block : net.blocks) products.push_back(runner.run(*block, {x})[0]);
    }
    for (size_t i = 0; i < products.size(); ++i)
      CHECK(at::equal(products[i].cpu(), net.products[i % net.blocks.size()]));
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("Outputs that leave a device and come back have the same bits in any order", "[queued]") {
  constexpr Action kActions[] = {Action::kRecompute, Action::kKeep, Action::kOffload};
  for (const Train train : {Train::kAdapters, Train::kAll}) {
    Tensors want;
    for (uint64_t seed = 1; seed <= kOrders; ++seed) {
      const QueuedDevices devices({.seed = seed, .closed = {0}});
      Net net(train, 0.1, 3, /*leased=*/false, queued_device(1));
      if (want.empty()) want = on_host(net.step(direct));
      const auto transfer = transfer_of(1);
      const auto offloader = std::make_shared<Offloader>(*transfer, int64_t{1} << 20);
      std::mt19937 random(static_cast<unsigned>(seed));
      ActionPlan plan;
      for (int op = 0; op < kOperators; ++op) plan.push_back(kActions[random() % 3]);
      RecomputeRunner runner(direct, [&](const Block&) { return plan; },
                             {.offloader = offloader, .offloads_inputs = seed % 2 == 0});
      for (int step = 0; step < 2; ++step) CHECK(test::same_bits(on_host(net.step(runner)), want));
      CHECK(devices.faults() == kNone);
    }
  }
}

TEST_CASE("Steps that stream and offload wait for copies alone", "[queued]") {
  const Tensors want = plain_step();
  for (const Place others : {Place::kHost, Place::kDisk}) {
    for (uint64_t seed = 1; seed <= kOrders / 4; ++seed) {
      QueuedDevices devices({.seed = seed, .closed = {0}});
      Moving moving(1, others);
      for (int step = 0; step < 2; ++step) {
        devices.refuse({Wait::kStream, Wait::kDevice, Wait::kValue, Wait::kCopy});
        const Tensors gradients = moving.net.step(*moving.runner);
        devices.refuse({});
        CHECK(test::same_bits(on_host(gradients), want));
      }
      CHECK(devices.count(Wait::kEvent) > 0);
      CHECK(moving.offloader->stats().sent_bytes > 0);
      CHECK(devices.faults() == kNone);
      CHECK(devices.opened() == std::set{1});
    }
  }
}

TEST_CASE("Any kind of waiting that is left out is found", "[queued]") {
  using Forgets = Careless::Forgets;
  const Tensors want = plain_step();
  for (const Forgets what : {Forgets::kComputing, Forgets::kCopies, Forgets::kHost}) {
    int tries = 0, found = 0, wrong = 0;
    while (tries < 5 || (wrong == 0 && tries < 100)) {
      const QueuedDevices devices({.seed = static_cast<uint64_t>(++tries), .eagerness = 0.3});
      const Place others = what == Forgets::kHost ? Place::kDisk : Place::kHost;
      Moving moving(1, others, std::make_unique<Careless>(1, what));
      for (int step = 0; step < 2; ++step) wrong += !test::same_bits(moving.step(), want);
      found += !devices.faults().empty();
    }
    CAPTURE(what, tries, found, wrong);
    CHECK(wrong > 0);
    // The host's own memory has no clock: values alone tell.
    CHECK(found == (what == Forgets::kHost ? 0 : tries));
  }
}

TEST_CASE("Streams that use memory and do not say so are found", "[queued]") {
  const QueuedDevices devices({.forgets_users = true});
  {
    Moving moving(1, Place::kHost);
    moving.step();
  }
  REQUIRE_FALSE(devices.faults().empty());
  CHECK_THAT(devices.faults()[0], Catch::Contains("memory of stream 0 of device 1 is freed while "
                                                  "aten::copy_ on stream ") &&
                                      Catch::Contains("record_stream()"));
}

TEST_CASE("What is exchanged arrives after what it waits for, in any order", "[queued]") {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    const QueuedDevices devices({.seed = seed, .closed = {0}});
    const auto transfer = transfer_of(1);
    const Tensor part = transfer->host_memory(1000), whole = transfer->device_memory(2000);
    for (int i = 1; i <= 3; ++i) {
      part.fill_(i);
      const Tensor place = whole.narrow(0, 0, 1000), other = whole.narrow(0, 1000, 1000);
      const Ticket here = transfer->copy_in(part, place, transfer->computed());
      const Ticket arrived =
          transfer->exchange([&] { return [=] { Tensor(other).copy_(place); }; }, whole, here);
      std::thread([&] { transfer->compute_after(arrived); }).join();
      transfer->compute_after(arrived);
      CHECK((whole.cpu() == i).all().item<bool>());
    }
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("A meter counts what the allocator of a device gives", "[queued]") {
  const QueuedDevices devices({.capacity = 1 << 20});
  const auto transfer = transfer_of(1);
  const DeviceMeter meter(queued_device(1), transfer.get());
  const Tensor held = transfer->device_memory(1000);
  { const Tensor gone = at::empty({3000}, held.options()); }
  CHECK(meter.bytes().live == 1024);
  CHECK(meter.bytes().peak == 1024 + 3072);
  CHECK(meter.bytes().reserved == 1024 + 3072);
  CHECK(meter.bytes().capacity == 1 << 20);
  CHECK(free_bytes(queued_device(1)) == (1 << 20) - 1024);
  test::expect_error(ErrorCode::kOutOfMemory, {"keep less on the device"},
                     [&] { transfer->device_memory(1 << 20); });
}

TEST_CASE("The allocator's peak is within the plan's", "[queued]") {
  for (const Train train : {Train::kAdapters, Train::kAll}) {
    const QueuedDevices devices({.closed = {0}});
    // Autograd's thread lets go of a graph when it comes to it.
    const auto settles_at = [](int64_t bytes) {
      for (int i = 0; i < 10'000 && taken_bytes() != bytes; ++i) std::this_thread::yield();
      return taken_bytes() == bytes;
    };
    REQUIRE(settles_at(0));
    Net net(train, 0.1, 8, /*leased=*/false, queued_device(1));
    const int64_t rests = taken_bytes();
    const Tensors want = on_host(net.step(direct));
    // What a step takes beside the blocks: gradients, and the loss with what leads to it.
    const auto pieces = [](const Tensor& t) {
      return (static_cast<int64_t>(t.nbytes()) + 511) / 512 * 512;
    };
    int64_t beside = 3 * pieces(net.target) + 4 * 512;
    for (const Tensor& t : net.trained) beside += train == Train::kAll ? pieces(t) : 0;
    std::set<int64_t> planned;
    for (int i = 0; i <= 5; ++i) {
      int64_t peak = 0;
      ActivationRunner runner(
          direct, {.kind = ActivationBudget::Kind::kFraction, .fraction = i / 5.0},
          queued_device(1), [&](const ActivationPlan& plan) { peak = plan.peak_bytes; });
      for (int pass = 0; pass < 3; ++pass) {
        REQUIRE(settles_at(rests));
        runner.begin_pass();
        const LiveBytes bytes(queued_device(1));
        const Tensors gradients = net.step(runner);
        CAPTURE(i, pass, peak, beside);
        if (pass > 0) CHECK(bytes.peak() <= peak + beside);
        if (pass > 0 && i < 5) CHECK(bytes.peak() > peak / 2);
        CHECK(test::same_bits(on_host(gradients), want));
      }
      planned.insert(peak);
    }
    CHECK(planned.size() > 4);
    CHECK(devices.faults() == kNone);
  }
}

}  // namespace atelier::memory
