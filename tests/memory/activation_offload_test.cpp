#include "memory/activation_offload.h"

#include <random>

#include "memory/direct.h"
#include "memory/live_bytes.h"
#include "memory/recompute.h"
#include "memory/toy_net.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using ops::Action;
using ops::ActionPlan;
using test::direct;
using test::kOperators;
using test::Net;
using test::Train;

// A host of `bytes` behind a simulated device whose memory is NaN until it is written.
struct Host {
  std::unique_ptr<TransferDevice> transfer;
  std::shared_ptr<Offloader> offloader;
  explicit Host(int64_t bytes = int64_t{1} << 20, double rate = 0.0,
                std::shared_ptr<VirtualClock> clock = nullptr)
      : transfer(make_simulated_device(
            {.bytes_per_second = rate, .poison = true, .clock = std::move(clock)})),
        offloader(std::make_shared<Offloader>(*transfer, bytes)) {}

  RecomputeRunner runner(ActionPlan plan, bool offloads_inputs = false) const {
    return RecomputeRunner(direct, [plan](const Block&) { return plan; },
                           {.offloader = offloader, .offloads_inputs = offloads_inputs});
  }
  // Until everything has left.
  void drain() const { transfer->wait(transfer->copy_out(at::zeros({1}), at::zeros({1}))); }
};

}  // namespace

TEST_CASE("Tensors come back as they left, again and again", "[offload]") {
  Host host;
  const Tensor dense = at::randn({3, 5}), turned = at::randn({4, 6}).t(), ints = at::arange(7);
  OffloadBatch batch(host.offloader);
  for (const Tensor& t : {dense, turned, ints}) {
    REQUIRE(batch.accepts(t));
    batch.add(t.clone());
  }
  CHECK_FALSE(batch.accepts(dense.slice(1, 0, 4)));
  CHECK_FALSE(batch.accepts(Tensor()));
  CHECK(at::equal(batch.take()[1], turned));  // before they left
  batch.send();
  batch.send();
  CHECK(host.offloader->stats().sent_bytes == 60 + 96 + 56);
  for (int i = 0; i < 2; ++i) {
    batch.fetch();
    const Tensors back = batch.take();
    CHECK(at::equal(back[0], dense));
    CHECK(at::equal(back[1], turned));
    CHECK(back[1].strides() == turned.strides());
    CHECK(at::equal(back[2], ints));
  }
}

TEST_CASE("The host's memory is used again, and no more than allowed", "[offload]") {
  Host host(4096);
  for (int i = 0; i < 5; ++i) {
    OffloadBatch a(host.offloader), b(host.offloader);
    a.add(at::zeros({512}));
    b.add(at::ones({512}));
    a.send();
    b.send();
    CHECK(host.offloader->stats().host_bytes == 4096);
    OffloadBatch full(host.offloader);
    const Tensor stays = at::ones({1});
    full.add(stays);
    full.send();
    CHECK(full.take()[0].is_same(stays));
    CHECK(a.take()[0].sum().item<float>() == 0);
    if (i % 2 == 0) CHECK(b.take()[0].sum().item<float>() == 512);
    if (i == 3) b.fetch();  // is not taken
  }
  OffloadBatch other(host.offloader);  // another size takes the place of what is idle
  other.add(at::ones({1024}));
  other.send();
  CHECK(other.take()[0].sum().item<float>() == 1024);
  CHECK(host.offloader->stats().host_bytes == 4096);
  CHECK(host.offloader->bytes_per_second() > 0);
}

TEST_CASE("Offloaded, kept and recomputed outputs give the same bits", "[offload]") {
  constexpr Action kActions[] = {Action::kRecompute, Action::kKeep, Action::kOffload};
  for (Train train : {Train::kAdapters, Train::kAll}) {
    Net net(train, 0.1, 3);
    const Tensors want = net.step(direct);
    std::vector<ActionPlan> plans = {ActionPlan(kOperators, Action::kOffload)};
    for (int i = 0; i < kOperators; ++i) {
      plans.emplace_back(kOperators, Action::kRecompute)[i] = Action::kOffload;
      for (int j = 0; j < i; ++j) {
        plans.emplace_back(kOperators, Action::kKeep)[i] = Action::kOffload;
        plans.back()[j] = Action::kRecompute;
      }
    }
    std::mt19937 random(17);
    for (int i = 0; i < 256; ++i) {
      ActionPlan& plan = plans.emplace_back();
      for (int op = 0; op < kOperators; ++op) plan.push_back(kActions[random() % 3]);
      if (train == Train::kAdapters && i % 2 == 0) plan.back() = Action::kSkip;
    }
    Host host;
    size_t equal = 0;
    for (const ActionPlan& plan : plans) {
      RecomputeRunner runner = host.runner(plan);
      equal += test::same_bits(net.step(runner), want);
    }
    CHECK(equal == plans.size());
    const Offloader::Stats stats = host.offloader->stats();
    CHECK(stats.sent_bytes > 0);
    CHECK(stats.brought_bytes == stats.sent_bytes);
  }
}

TEST_CASE("What sets of keys gave leaves as one item, and comes back with its bits", "[offload]") {
  struct Sets final : Block {
    Segments rows{{7, 5}}, texts{{3, 6}};
    Tensor sees = at::randint(0, 4, {12}, at::kLong), groups = at::randint(1, 4, {9}, at::kLong);
    Sets() : Block(nullptr, "sets") {}
    std::string_view kind() const override { return "sets"; }
    Tensors forward(const Tensors& in) override {
      const std::vector<ops::KeySet> sets = {{in[0], in[0], rows},
                                             {in[1], in[1], texts, sees, groups, 0.5}};
      return {ops::attention(in[0], rows, sets).square()};
    }
  };
  at::manual_seed(6);
  Sets block;
  const Tensors inputs = {test::trained(at::randn({12, 2, 4})),
                          test::trained(at::randn({9, 2, 4}))};
  const Tensors want = test::gradients(direct.run(block, inputs), inputs);
  Host host;
  RecomputeRunner runner = host.runner({Action::kOffload});
  CHECK(test::same_bits(test::gradients(runner.run(block, inputs), inputs), want));
  CHECK(host.offloader->stats().brought_bytes == 12 * (8 + 2) * 4);
}

TEST_CASE("Offloaded bytes are not on the device", "[offload]") {
  Net net(Train::kAdapters, 0, 4);
  Host host;
  const auto held = [&](Action action) {
    RecomputeRunner runner = host.runner(ActionPlan(kOperators, action));
    LiveBytes bytes(at::kCPU);
    const Tensor y = net.forward(runner);
    host.drain();
    return bytes.now();
  };
  const int64_t nothing = held(Action::kRecompute), all = held(Action::kKeep);
  CHECK(held(Action::kOffload) == nothing);
  CHECK(host.offloader->stats().sent_bytes == all - nothing);
}

TEST_CASE("Offloaded blocks may run twice, and their graph serve twice", "[offload]") {
  Net net(Train::kAdapters, 0.1);
  Host host;
  RecomputeRunner runner = host.runner(ActionPlan(kOperators, Action::kOffload));
  const auto twice = [&](BlockRunner& by) {
    at::manual_seed(7);
    const Tensor first = net.forward(by);
    const Tensor second = net.forward(by);
    return net.gradients_of(first + 2 * second);
  };
  CHECK(test::same_bits(twice(runner), twice(direct)));
  const Tensors once = net.step(direct);
  for (bool inputs : {false, true}) {
    RecomputeRunner by = host.runner(ActionPlan(kOperators, Action::kOffload), inputs);
    at::manual_seed(7);
    const Tensor y = net.forward(by);
    CHECK(test::same_bits(net.gradients_of(y, /*retain=*/true), once));
    CHECK(test::same_bits(net.gradients_of(y), once));
    net.forward(by).reset();  // and a graph that is given up
    CHECK(test::same_bits(net.step(by), once));
  }
}

TEST_CASE("Inputs of blocks wait on the host, but for the last two", "[offload]") {
  for (Train train : {Train::kAdapters, Train::kAll}) {
    const int count = 7;
    Net net(train, 0.1, count);
    const Tensors want = net.step(direct);
    Host host;
    RecomputeRunner runner = host.runner({}, /*offloads_inputs=*/true), plain(direct);
    const auto held = [&](BlockRunner& by) {
      LiveBytes bytes(at::kCPU);
      at::manual_seed(7);
      const Tensor y = net.forward(by);
      host.drain();
      const int64_t now = bytes.now();
      CHECK(test::same_bits(net.gradients_of(y), want));
      return now;
    };
    // The first one is the caller's.
    const int64_t away = (count - 3) * static_cast<int64_t>(net.inputs[0].nbytes());
    CHECK(held(plain) - held(runner) == away);
    CHECK(host.offloader->stats().sent_bytes == away);
  }
}

TEST_CASE("Copies hide behind computing when they fit into a block's time", "[offload]") {
  Net net(Train::kAdapters, 0, 8);
  const auto clock = std::make_shared<VirtualClock>();
  for (auto& block : net.blocks) block->probe = [&] { clock->advance(1.0); };
  const auto waited = [&](double blocks_a_copy) {
    int64_t bytes = 0;
    {
      Host host;
      RecomputeRunner runner = host.runner(ActionPlan(kOperators, Action::kOffload));
      net.step(runner);
      bytes = host.offloader->stats().sent_bytes / std::ssize(net.blocks);
    }
    Host host(int64_t{1} << 20, static_cast<double>(bytes) / blocks_a_copy, clock);
    RecomputeRunner runner(
        direct,
        [&](const Block& block) {
          const bool moves = &block != net.blocks[7].get() && &block != net.blocks[6].get();
          return ActionPlan(kOperators, moves ? Action::kOffload : Action::kKeep);
        },
        {.offloader = host.offloader});
    net.step(runner);
    return host.transfer->stats().waited_seconds;
  };
  CHECK(waited(0.9) == Approx(0.0).margin(1e-9));
  CHECK(waited(2.0) > 3.0);
}

TEST_CASE("An error while outputs are away leaves nothing behind", "[offload]") {
  Net net(Train::kAdapters, 0.1, 4);
  Host host;
  RecomputeRunner runner = host.runner(ActionPlan(kOperators, Action::kOffload));
  const Tensors want = net.step(direct);
  bool armed = false;
  net.blocks[1]->probe = [&] {
    if (armed) throw Error(ErrorCode::kCancelled, "stop");
  };
  at::manual_seed(7);
  Tensor y = net.forward(runner);
  armed = true;
  CHECK(test::error_of([&] { net.gradients_of(y); }).code() == ErrorCode::kCancelled);
  armed = false;
  y.reset();
  CHECK(test::same_bits(net.step(runner), want));
}

}  // namespace atelier::memory
