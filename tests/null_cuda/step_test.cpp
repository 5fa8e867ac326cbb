// Training steps on LibTorch's CUDA half: what the host waits for, on which devices, and how much
// memory is taken.
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include <ATen/DeviceAccelerator.h>

#include "memory/activation_runner.h"
#include "memory/cuda_transfer_device.h"
#include "memory/direct.h"
#include "memory/live_bytes.h"
#include "memory/residency.h"
#include "memory/toy_net.h"
#include "null_cuda/cuda_half.h"
#include "null_cuda/runtime.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using ops::ActionPlan;
using test::cuda_device;
using test::direct;
using test::kOperators;
using test::Net;
using test::Train;

// What steps are made of, each named.
struct Seen {
  std::set<std::string> waits, elsewhere;  // calls
  std::set<std::thread::id> threads;
  size_t kernels = 0;
};

// What `work` calls, which belongs to `device`.
Seen see(int device, const std::function<void()>& work) {
  cuda_device(device);
  null_cuda::begin_log();
  work();
  Seen seen;
  for (const null_cuda::Call& call : null_cuda::end_log()) {
    if (call.is_waiting) seen.waits.insert(call.name);
    if (call.device != device) seen.elsewhere.insert(call.name);
    seen.threads.insert(call.thread);
    seen.kernels += call.name == "cudaLaunchKernel" || call.name == "product";
  }
  return seen;
}

const std::set<std::string> kNone = {};

// A network whose blocks stream, and whose outputs wait on the host.
struct Moving {
  static constexpr int kBlocks = 5;
  Net net;
  std::unique_ptr<TransferDevice> transfer;
  std::shared_ptr<Offloader> offloader;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<StreamingRunner> streaming;
  std::unique_ptr<RecomputeRunner> runner;

  explicit Moving(int device)
      : net(Train::kAdapters, 0.1, kBlocks, /*leased=*/false, cuda_device(device)),
        transfer(make_cuda_transfer_device(cuda_device(device))),
        offloader(std::make_shared<Offloader>(*transfer, int64_t{1} << 20)) {
    const ResidencyPlan plan = spread_residents(kBlocks, 1, Place::kHost, /*prefetch=*/1);
    std::vector<Block*> blocks;
    for (size_t i = 0; i < net.blocks.size(); ++i) {
      blocks.push_back(net.blocks[i].get());
      blocks.back()->visit_weights([&](const std::string&, Weight& weight) {
        const bool stays = plan.blocks[i] == Place::kDevice;
        weight.set(weight.draw().to(stays ? cuda_device(device) : at::kCPU));
      });
    }
    residency = std::make_unique<Residency>(blocks, plan, *transfer);
    streaming = std::make_unique<StreamingRunner>(direct, std::vector{residency.get()});
    runner = std::make_unique<RecomputeRunner>(
        *streaming, [](const Block&) { return ActionPlan(kOperators, Action::kOffload); },
        RecomputeOptions{.offloader = offloader});
  }
};

}  // namespace

TEST_CASE("A step waits for nothing, and all its threads are on its device", "[null_cuda]") {
  for (const int device : {1, 0}) {
    for (const Train train : {Train::kAdapters, Train::kAll}) {
      Net net(train, 0.1, 3, /*leased=*/false, cuda_device(device));
      RecomputeRunner recompute(direct);
      for (BlockRunner* runner :
           {static_cast<BlockRunner*>(&direct), static_cast<BlockRunner*>(&recompute)}) {
        net.step(*runner);
        Tensors gradients;
        const Seen seen = see(device, [&] { gradients = net.step(*runner); });
        CHECK(seen.waits == kNone);
        CHECK(seen.elsewhere == kNone);
        CHECK(seen.threads.size() == 2);  // one of autograd's
        CHECK(seen.kernels > 100);
        for (const Tensor& gradient : gradients) CHECK(gradient.device() == cuda_device(device));
      }
    }
  }
}

TEST_CASE("What waits, and where, is seen", "[null_cuda]") {
  const Tensor x = at::ones({4}, cuda_device(1));
  CHECK(see(1, [&] { x.cpu(); }).waits ==
        std::set<std::string>{"cudaMemcpyAsync", "cudaStreamSynchronize"});
  CHECK(see(1, [&] { at::ones({4}).to(cuda_device(1), /*non_blocking=*/true); }).waits ==
        std::set<std::string>{"cudaMemcpyAsync"});
  CHECK_FALSE(see(1, [&] { at::ones({4}, cuda_device(0)); }).elsewhere.empty());
}

TEST_CASE("Steps that stream and offload wait for copies alone", "[null_cuda]") {
  for (const int device : {1, 0}) {
    Moving moving(device);
    moving.net.step(*moving.runner);
    for (const bool is_held : {false, true}) {
      if (is_held) null_cuda::hold_streams();
      const Seen seen = see(device, [&] { moving.net.step(*moving.runner); });
      null_cuda::release_streams();
      std::set<std::string> waits = seen.waits;
      waits.erase("cudaEventSynchronize");
      CHECK(waits == kNone);
      CHECK(seen.elsewhere == kNone);
    }
    CHECK(moving.residency->stats().copies > Moving::kBlocks);
    CHECK(moving.offloader->stats().sent_bytes > 0);
  }
  CHECK(null_cuda::copies_from_nowhere() == 0);
}

namespace {

int64_t taken_bytes() {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return at::accelerator::getDeviceStats(1).allocated_bytes[kAll].current;
}

}  // namespace

TEST_CASE("The peak of LibTorch's allocator is within the plan's", "[null_cuda]") {
  for (const Train train : {Train::kAdapters, Train::kAll}) {
    // Autograd's thread lets go of a graph when it comes to it.
    const auto settles_at = [](int64_t bytes) {
      for (int i = 0; i < 10'000 && taken_bytes() != bytes; ++i) std::this_thread::yield();
      return taken_bytes() == bytes;
    };
    Net net(train, 0.1, 8, /*leased=*/false, cuda_device(1));
    net.step(direct);  // products take their workspaces
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const int64_t rests = taken_bytes();
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
          direct, {.kind = ActivationBudget::Kind::kFraction, .fraction = i / 5.0}, cuda_device(1),
          [&](const ActivationPlan& plan) { peak = plan.peak_bytes; });
      for (int pass = 0; pass < 3; ++pass) {
        REQUIRE(settles_at(rests));
        runner.begin_pass();
        const LiveBytes bytes(cuda_device(1));
        net.step(runner);
        CAPTURE(i, pass, peak, beside);
        if (pass > 0) CHECK(bytes.peak() <= peak + beside);
        if (pass > 0 && i < 5) CHECK(bytes.peak() > peak / 2);
      }
      planned.insert(peak);
    }
    CHECK(planned.size() > 4);
  }
}

}  // namespace atelier::memory
