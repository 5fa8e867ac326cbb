// What copies beside the computing, on devices that are as asynchronous as a GPU.
#include <algorithm>
#include <random>
#include <thread>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/DeviceGuard.h>

#include "memory/cuda_transfer_device.h"
#include "memory/direct.h"
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

TEST_CASE("A staging ring fills one part while the other is on its way to a device", "[queued]") {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    const QueuedDevices devices({.seed = seed, .closed = {0}});
    const auto transfer = transfer_of(1);
    StagingRing ring(*transfer, 256);
    Tensors arrived;
    for (int i = 0; i < 6; ++i) {
      const c10::DeviceGuard guard(transfer->device());
      arrived.push_back(transfer->device_memory(200));
      std::memset(ring.take(arrived.back()), i + 1, 200);
      ring.send();
    }
    ring.wait();
    for (size_t i = 0; i < arrived.size(); ++i)
      CHECK((arrived[i].cpu() == static_cast<int64_t>(i + 1)).all().item<bool>());
    CHECK(devices.faults() == kNone);
  }
}

TEST_CASE("Blocks that stream to a device compute the same bits in any order", "[queued]") {
  constexpr int kBlocks = 5;
  Tensors want;
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    for (const Place others : {Place::kHost, Place::kDisk}) {
      const QueuedDevices devices({.seed = seed, .closed = {0}});
      Net net(Train::kAdapters, 0.1, kBlocks, /*leased=*/false, queued_device(1));
      if (want.empty()) want = on_host(net.step(direct));
      const ResidencyPlan plan = spread_residents(kBlocks, 1, others, /*prefetch=*/1);
      load(net, plan, queued_device(1));
      const auto transfer = transfer_of(1);
      Residency residency(blocks_of(net), plan, *transfer);
      StreamingRunner streaming(direct, {&residency});
      RecomputeRunner recompute(streaming);
      for (int step = 0; step < 2; ++step)
        CHECK(test::same_bits(on_host(net.step(recompute)), want));
      CHECK(residency.stats().copies > kBlocks);
      CHECK(devices.faults() == kNone);
    }
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

}  // namespace atelier::memory
