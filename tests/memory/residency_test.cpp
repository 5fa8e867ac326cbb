#include "memory/residency.h"

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "memory/direct.h"
#include "memory/live_bytes.h"
#include "memory/matrices.h"
#include "memory/quantized_store.h"
#include "memory/toy_net.h"

namespace atelier::memory {
namespace {

using at::Tensor;

using test::direct;
using test::forward_order;
using test::kMatrixBytes;
using test::kSide;
using test::Matrices;
using test::MatrixBlock;

// Blocks that compute for a second each and come at `matrices_per_second`, in virtual time.
struct TimedMatrices : Matrices {
  std::shared_ptr<VirtualClock> clock = std::make_shared<VirtualClock>();
  std::unique_ptr<TransferDevice> transfer;
  std::unique_ptr<Residency> residency;
  std::unique_ptr<StreamingRunner> runner;

  TimedMatrices(int count, double matrices_per_second, int64_t resident, int64_t prefetch)
      : Matrices(count),
        transfer(
            make_simulated_device({.bytes_per_second = matrices_per_second * double{kMatrixBytes},
                                   .poison = true,
                                   .clock = clock})),
        residency(std::make_unique<Residency>(
            all(), spread_residents(count, resident, Place::kHost, prefetch), *transfer)),
        runner(std::make_unique<StreamingRunner>(direct, std::vector{residency.get()})) {
    for (auto& block : blocks) block->probe = [this] { clock->advance(1); };
  }

  // Seconds that running the blocks in this order takes.
  double time(const std::vector<int>& order) {
    const double start = clock->now();
    CHECK(wrong(*runner, order) == 0);
    return clock->now() - start;
  }
};

// Sees which copies wait for which computing.
class WatchedPort final : public TransferDevice {
 public:
  struct Marker final : Ticket::State {
    int64_t number = 0;
  };

  std::map<const void*, int64_t> released;  // by address of a slot: the marker of its last use
  std::atomic<int64_t> markers = 0, copies = 0, unordered = 0;
  std::atomic<int64_t> fails_at = INT64_MAX;  // so many copies are well, and the next one is not

  at::Device device() const override { return inner_->device(); }
  Tensor device_memory(int64_t bytes) override { return inner_->device_memory(bytes); }
  Tensor host_memory(int64_t bytes) override { return inner_->host_memory(bytes); }
  Tensor pin(std::shared_ptr<void> memory, int64_t bytes) override {
    return inner_->pin(std::move(memory), bytes);
  }
  Ticket copy_in(const Tensor& from, const Tensor& to, const Ticket& after) override {
    const auto* marker = dynamic_cast<const Marker*>(after.state().get());
    const auto found = released.find(to.data_ptr());
    if (copies >= fails_at) {
      fails_at = INT64_MAX;
      throw Error(ErrorCode::kEnvironment, "the copy failed");
    }
    ++copies;
    // Before its first use a slot waits for what was computed when its memory was taken.
    if (marker == nullptr || marker->number != (found == released.end() ? 1 : found->second))
      ++unordered;
    return inner_->copy_in(from, to);
  }
  Ticket copy_out(const Tensor& from, const Tensor& to, const Ticket&) override {
    return inner_->copy_out(from, to);
  }
  Ticket exchange(const std::function<std::function<void()>()>& begin, const Tensor& to,
                  const Ticket& after) override {
    return inner_->exchange(begin, to, after);
  }
  Ticket computed() override {
    auto marker = std::make_shared<Marker>();
    marker->number = ++markers;
    return Ticket(std::move(marker));
  }
  void compute_after(const Ticket& ticket) override { inner_->compute_after(ticket); }
  void wait(const Ticket& ticket) override { inner_->wait(ticket); }
  Stats stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<TransferDevice> inner_ = make_simulated_device({.poison = true});
};

// What wraps a store: twice the weight.
class Doubled final : public WeightStore {
 public:
  explicit Doubled(std::shared_ptr<const WeightStore> base) : base_(std::move(base)) {}
  Tensor draw() const override { return base_->draw() * 2; }

 private:
  std::shared_ptr<const WeightStore> base_;
};

// What knows how to rest elsewhere: the sum of two tensors.
class Summed final : public WeightStore {
 public:
  Summed(Tensor a, Tensor b) : a_(std::move(a)), b_(std::move(b)) {}
  Tensor draw() const override { return a_ + b_; }
  std::vector<Tensor> parts() const override { return {a_, b_}; }
  std::shared_ptr<const WeightStore> over(std::vector<Tensor> copies) const override {
    return std::make_shared<Summed>(copies.at(0), copies.at(1));
  }

 private:
  Tensor a_, b_;
};

std::vector<Block*> blocks_of(test::Net& net) {
  std::vector<Block*> result;
  for (auto& block : net.blocks) result.push_back(block.get());
  return result;
}

// As the tensors of a mapped file lie: in one piece, aligned to their elements alone.
void map_weights(Block& block) {
  block.visit_weights([](const std::string&, Weight& weight) {
    const Tensor value = weight.draw();
    const Tensor file = at::empty({value.numel() + 5}, value.options());
    weight.set(file.narrow(0, 5, value.numel()).view(value.sizes()).copy_(value));
  });
}

void quantize_linears(Block& block, QuantizedKind kind) {
  block.visit([&](nn::Module& module) {
    if (auto* linear = dynamic_cast<nn::Linear*>(&module))
      linear->weight->state().set_store(
          std::make_shared<QuantizedStore>(quantize(linear->weight->draw(), kind), at::kFloat));
  });
}

}  // namespace

TEST_CASE("Residents lie evenly between streamed blocks", "[residency]") {
  const auto places = [](int64_t blocks, int64_t resident) {
    std::string text;
    for (const Place place : spread_residents(blocks, resident, Place::kHost).blocks)
      text += place == Place::kDevice ? 'D' : place == Place::kHost ? 'h' : '?';
    return text;
  };
  CHECK(places(8, 0) == "hhhhhhhh");
  CHECK(places(8, 2) == "DhhhDhhh");
  CHECK(places(7, 3) == "DhhDhDh");
  CHECK(places(4, 4) == "DDDD");
  CHECK(places(0, 0).empty());
  CHECK(spread_residents(2, 1, Place::kDisk).blocks[1] == Place::kDisk);
  CHECK(test::error_of([] { spread_residents(4, 5, Place::kHost); }).code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("Streamed blocks compute the same bits, from the host and from disk", "[residency]") {
  constexpr int kBlocks = 6;
  for (const bool is_quantized : {false, true}) {
    for (const Place others : {Place::kHost, Place::kDisk}) {
      for (const int64_t resident : {0, 3, 6}) {
        test::Net plain(test::Train::kAdapters, 0.1, kBlocks);
        test::Net net(test::Train::kAdapters, 0.1, kBlocks);
        for (int i = 0; i < kBlocks; ++i) {
          map_weights(*net.blocks[i]);
          if (!is_quantized) continue;
          for (test::Net* of : {&plain, &net})
            quantize_linears(*of->blocks[i],
                             i % 2 == 0 ? QuantizedKind::kFp8 : QuantizedKind::kInt8);
        }
        const Tensors want = plain.step(direct);
        const auto transfer = make_simulated_device({.poison = true});
        Residency residency(blocks_of(net), spread_residents(kBlocks, resident, others), *transfer);
        StreamingRunner streaming(direct, {&residency});
        RecomputeRunner recompute(streaming);
        INFO(is_quantized << ' ' << resident << " resident, others " << int(others));
        for (int step = 0; step < 3; ++step) {
          CHECK(test::same_bits(net.step(recompute), want));
          const at::NoGradGuard no_grad;
          at::manual_seed(7);
          const Tensor y = net.forward(streaming);
          at::manual_seed(7);
          CHECK(at::equal(y, plain.forward(direct)));
        }
        const Residency::Stats stats = residency.stats();
        CHECK((stats.copies > 0) == (resident < kBlocks));
        CHECK((stats.host_bytes > 0) == (resident < kBlocks));
      }
    }
  }
}

TEST_CASE("What a block rests in and what comes is counted", "[residency]") {
  Matrices net(5);
  const auto transfer = make_simulated_device({});
  {
    Residency residency(net.all(), spread_residents(5, 2, Place::kHost, 1), *transfer);
    StreamingRunner runner(direct, {&residency});
    CHECK(net.wrong(runner, forward_order(5)) == 0);
    const Residency::Stats stats = residency.stats();
    CHECK(stats.device_bytes == (2 + 2) * kMatrixBytes);
    CHECK(stats.host_bytes == 3 * kMatrixBytes);
    CHECK(stats.copied_bytes == stats.copies * kMatrixBytes);
    CHECK(transfer->stats().bytes_in == stats.copied_bytes);
    CHECK(transfer->stats().live_bytes == 2 * kMatrixBytes);
    CHECK(transfer->stats().host_bytes == 3 * kMatrixBytes);
  }
  CHECK(transfer->stats().live_bytes == 0);
  // The weights stay, and can be drawn.
  CHECK(net.wrong(direct, forward_order(5)) == 0);
}

TEST_CASE("The host keeps every weight once", "[residency]") {
  for (const bool is_quantized : {false, true}) {
    for (const bool is_demanded : {false, true}) {
      const LiveBytes measured(at::kCPU);
      Matrices net(3);
      std::set<const Weight*> demanded;
      for (auto& block : net.blocks) {
        if (is_quantized) quantize_linears(*block, QuantizedKind::kFp8);
        if (is_demanded) demanded.insert(block->linear.weight.get());
      }
      const int64_t before = measured.now();
      const auto transfer = make_simulated_device({});
      Residency residency(net.all(), spread_residents(3, 0, Place::kHost), *transfer, demanded);
      const int64_t bytes = 3 * (is_quantized ? kSide * (kSide + 4) : kMatrixBytes);
      CHECK(before - measured.now() == bytes);
      CHECK(residency.stats().host_bytes == bytes);
    }
  }
}

TEST_CASE("A store that says what it is made of comes and goes by that", "[residency]") {
  for (const Place place : {Place::kHost, Place::kDisk}) {
    Matrices net(3);
    for (auto& block : net.blocks) {
      const Tensor half = block->linear.weight->draw() / 2;
      block->linear.weight->state().set_store(std::make_shared<Summed>(half, half.clone()));
    }
    const auto transfer = make_simulated_device({});
    Residency residency(net.all(), spread_residents(3, 1, place), *transfer);
    StreamingRunner runner(direct, {&residency});
    CHECK(net.wrong(runner, forward_order(3)) == 0);
    CHECK(residency.stats().copies == 2);
  }
}

TEST_CASE("Copies hide behind computing, or computing behind copies", "[residency]") {
  constexpr int kBlocks = 8, kPasses = 3;
  const std::vector<int> pass = forward_order(kBlocks);
  for (const int64_t prefetch : {1, 2, 3}) {
    for (const double rate : {4.0, 2.0, 1.0, 0.5, 0.25}) {
      for (const int64_t resident : {0, 2, 4}) {
        TimedMatrices net(kBlocks, rate, resident, prefetch);
        net.time(pass);  // learns where a pass ends
        net.time(pass);
        const Residency::Stats before = net.residency->stats();
        double seconds = 0;
        for (int i = 0; i < kPasses; ++i) seconds += net.time(pass);
        const Residency::Stats after = net.residency->stats();
        const double computing = kPasses * kBlocks;
        // What fits into the slots comes once and stays.
        const int64_t streamed = kBlocks - resident > prefetch + 1 ? kBlocks - resident : 0;
        const double copying = kPasses * static_cast<double>(streamed) / rate;
        INFO("prefetch " << prefetch << ", rate " << rate << ", resident " << resident);
        CHECK(seconds == Approx(std::max(computing, copying)));
        CHECK(after.waited_seconds - before.waited_seconds == Approx(seconds - computing));
        CHECK(after.copies - before.copies == kPasses * streamed);
        CHECK(after.late == 0);
      }
    }
  }
}

TEST_CASE("Without a place for the next block copying and computing take turns", "[residency]") {
  TimedMatrices net(6, 1, 0, /*prefetch=*/0);
  net.time(forward_order(6));
  CHECK(net.time(forward_order(6)) == Approx(12));
  CHECK(net.transfer->stats().live_bytes == kMatrixBytes);
}

TEST_CASE("Backward passes find their blocks on the device too", "[residency]") {
  constexpr int kBlocks = 6;
  TimedMatrices net(kBlocks, 1, 0, 2);
  std::vector<int> step = forward_order(kBlocks);
  for (int i = kBlocks; i-- > 0;) step.push_back(i);
  net.time(step);
  net.time(step);
  const Residency::Stats before = net.residency->stats();
  CHECK(net.time(step) == Approx(2 * kBlocks));
  const Residency::Stats after = net.residency->stats();
  CHECK(after.late == before.late);
  // Where it turns around the blocks are still there.
  CHECK(after.copies - before.copies == 2 * (kBlocks - 3));
}

TEST_CASE("A block that runs twice comes once", "[residency]") {
  constexpr int kBlocks = 6;
  TimedMatrices net(kBlocks, 0.5, 0, 1);
  std::vector<int> pass;
  for (int i = 0; i < kBlocks; ++i) pass.insert(pass.end(), {i, i});
  net.time(pass);
  net.time(pass);
  const Residency::Stats before = net.residency->stats();
  CHECK(net.time(pass) == Approx(2 * kBlocks));
  const Residency::Stats after = net.residency->stats();
  CHECK(after.copies - before.copies == kBlocks);
  CHECK(after.late == 0);
}

TEST_CASE("Wrong guesses cost time and nothing else", "[residency]") {
  for (const Place place : {Place::kHost, Place::kDisk}) {
    for (const int64_t prefetch : {0, 1, 3}) {
      Matrices net(7);
      const auto transfer =
          make_simulated_device({.bytes_per_second = 1e4 * double{kMatrixBytes}, .poison = true});
      ResidencyPlan plan = spread_residents(7, 0, place, prefetch);
      plan.blocks[3] = place == Place::kHost ? Place::kDisk : Place::kHost;
      Residency residency(net.all(), plan, *transfer);
      StreamingRunner runner(direct, {&residency});
      std::mt19937 random(5);
      std::vector<int> order;
      for (int i = 0; i < 400; ++i) order.push_back(static_cast<int>(random() % 7));
      CHECK(net.wrong(runner, order) == 0);
      CHECK(residency.stats().late > 0);
      CHECK(residency.stats().waited_seconds > 0);
    }
  }
}

TEST_CASE("A slot is filled again after what was computed with it", "[residency]") {
  Matrices net(6);
  WatchedPort transfer;
  Residency residency(net.all(), spread_residents(6, 0, Place::kHost, 2), transfer);
  for (int pass = 0; pass < 4; ++pass) {
    for (int i = 0; i < 6; ++i) {
      auto outer = residency.hold(*net.blocks[i]);
      auto inner = residency.hold(*net.blocks[i]);
      const void* const slot = net.weight(i).draw().data_ptr();
      outer.reset();
      const int64_t markers = transfer.markers;
      inner.reset();
      CHECK(transfer.markers == markers + 1);
      transfer.released[slot] = transfer.markers;
    }
  }
  CHECK(transfer.copies >= 24);
  CHECK(transfer.unordered == 0);
}

TEST_CASE("A held block stays, and more than there are slots cannot be held", "[residency]") {
  Matrices net(5);
  const auto transfer = make_simulated_device({.poison = true});
  Residency residency(net.all(), spread_residents(5, 1, Place::kHost, 1), *transfer);
  StreamingRunner runner(direct, {&residency});
  CHECK(residency.hold(*net.blocks[0]) == nullptr);  // always there
  CHECK(residency.hold(MatrixBlock(nullptr, "stranger")) == nullptr);
  std::shared_ptr<void> second = residency.hold(*net.blocks[2]);
  const Tensor held = net.weight(2).draw();
  CHECK(net.wrong(runner, {1, 3, 4, 2, 1, 4, 3}) == 0);
  CHECK(net.weight(2).draw().data_ptr() == held.data_ptr());
  std::shared_ptr<void> third = residency.hold(*net.blocks[3]);
  const Error full = test::error_of([&] { residency.hold(*net.blocks[4]); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "blocks.4"));
  std::thread([&] { third.reset(); }).join();
  CHECK(net.wrong(runner, {4, 1, 2, 3}) == 0);
  second.reset();
  CHECK(net.wrong(runner, {4, 1, 2, 3}) == 0);
}

TEST_CASE("A weight is drawn right whether its block is held or not", "[residency]") {
  Matrices net(4);
  Tensors want;
  for (int i = 0; i < 4; ++i) want.push_back(net.weight(i).draw());
  const auto transfer = make_simulated_device({.poison = true});
  Residency residency(net.all(), spread_residents(4, 0, Place::kHost, 1), *transfer);
  Tensors drawn;
  for (int i = 0; i < 4; ++i) drawn.push_back(net.weight(i).draw());  // all at once
  CHECK(test::same_bits(drawn, want));
  drawn.clear();
  const Tensor index = at::tensor({3, 0, 3});
  for (int i = 0; i < 4; ++i) {
    CHECK(at::equal(net.weight(i).draw_rows(index), want[i].index_select(0, index)));
    const auto held = residency.hold(*net.blocks[i]);
    CHECK(at::equal(net.weight(i).draw(), want[i]));
    CHECK(at::equal(net.weight(i).draw_rows(index), want[i].index_select(0, index)));
  }
  // Its storage is its own: nobody keeps what is made of it.
  CHECK(net.weight(0).draw().storage().use_count() == 1);
  net.weight(2).state().set_store(std::make_shared<Doubled>(net.weight(2).state().store()));
  StreamingRunner runner(direct, {&residency});
  CHECK(test::error(runner.run(*net.blocks[2], {net.x})[0], net.products[2] * 2) < 1e-6);
}

TEST_CASE("A backward pass of products draws what was streamed again", "[residency]") {
  Matrices net(5);
  const auto gradient = [&](BlockRunner& runner) {
    const Tensor x = test::trained(net.x);
    Tensors values = {x};
    for (auto& block : net.blocks) values = runner.run(*block, values);
    return test::gradients(values, {x});
  };
  const Tensors want = gradient(direct);
  const auto transfer = make_simulated_device({.poison = true});
  Residency residency(net.all(), spread_residents(5, 0, Place::kHost, 1), *transfer);
  StreamingRunner runner(direct, {&residency});
  for (int step = 0; step < 3; ++step) CHECK(test::same_bits(gradient(runner), want));
}

TEST_CASE("Nothing that autograd holds is a streamed or a dequantised weight", "[residency]") {
  for (const bool is_quantized : {false, true}) {
    // Without dropout: states of generators rest on the host.
    test::Net net(test::Train::kAdapters, 0.0, 4);
    if (is_quantized) {
      for (auto& block : net.blocks) quantize_linears(*block, QuantizedKind::kFp8);
    }
    // What the graph of a forward pass holds when the weights are just there.
    RecomputeRunner plain(direct);
    (void)net.step(plain);
    int64_t activations = 0;
    {
      const LiveBytes measured(at::kCPU);
      const Tensor y = net.forward(plain);
      activations = measured.now();
    }
    CHECK(activations > 0);
    const auto transfer = make_simulated_device({.capacity = int64_t{1} << 40, .poison = true});
    Residency residency(blocks_of(net), spread_residents(4, 0, Place::kHost, 1), *transfer);
    const int64_t slots = residency.stats().device_bytes;
    CHECK(transfer->stats().live_bytes == slots);
    StreamingRunner streaming(direct, {&residency});
    RecomputeRunner recompute(streaming);
    (void)net.step(recompute);
    const Tensor y = net.forward(recompute);
    CHECK(transfer->stats().live_bytes == slots + activations);
  }
}

TEST_CASE("Strides stay as they are", "[residency]") {
  MatrixBlock block(nullptr, "block");
  const Tensor turned = at::randn({kSide, kSide}).t(), holes = at::randn({kSide, 2 * kSide});
  for (const Tensor& value : {turned, holes.slice(1, 0, kSide)}) {
    for (const Place place : {Place::kHost, Place::kDisk}) {
      block.linear.weight->set(value);
      const auto transfer = make_simulated_device({.poison = true});
      Residency residency({&block}, spread_residents(1, 0, place), *transfer);
      const auto held = residency.hold(block);
      CHECK(at::equal(block.linear.weight->draw(), value));
      if (value.is_same(turned)) CHECK(block.linear.weight->draw().strides() == turned.strides());
    }
  }
}

TEST_CASE("Weights on demand stay on the host until they are drawn", "[residency]") {
  for (const Place place : {Place::kHost, Place::kDisk, Place::kDevice}) {
    test::Net plain(test::Train::kAdapters, 0, 3), net(test::Train::kAdapters, 0, 3);
    std::set<const Weight*> demanded;
    int64_t bytes = 0;
    for (auto& block : net.blocks) {
      demanded.insert(block->mod.weight.get());
      bytes = block->mod.weight->numel() * 4;
    }
    const auto transfer = make_simulated_device({.poison = true});
    Residency residency(blocks_of(net), spread_residents(3, 0, place), *transfer, demanded);
    StreamingRunner runner(direct, {&residency});
    CHECK(at::equal(net.forward(runner), plain.forward(direct)));
    const int64_t before = residency.stats().copied_bytes;
    CHECK(at::equal(net.blocks[1]->mod.weight->draw(), plain.blocks[1]->mod.weight->draw()));
    CHECK(residency.stats().copied_bytes == before + bytes);
    CHECK(transfer->stats().live_bytes <
          (place == Place::kDevice ? 1 : residency.stats().device_bytes + 1));
    const Tensor index = at::tensor({5, 1});
    CHECK(at::equal(net.blocks[1]->mod.weight->draw_rows(index),
                    plain.blocks[1]->mod.weight->draw().index_select(0, index)));
    CHECK(residency.stats().copied_bytes == before + bytes);  // rows alone crossed
  }
}

TEST_CASE("What the host writes is drawn after a refresh", "[residency]") {
  Matrices net(5);
  const auto transfer = make_simulated_device({.poison = true});
  ResidencyPlan plan = spread_residents(5, 0, Place::kHost, 2);
  plan.blocks[3] = Place::kDevice;
  plan.blocks[4] = Place::kDisk;
  Residency residency(net.all(), plan, *transfer);
  StreamingRunner runner(direct, {&residency});
  for (int step = 0; step < 4; ++step) {
    CHECK(net.wrong(runner, forward_order(5)) == 0);
    for (const size_t i : {0, 1, 2}) {
      Tensor value = residency.host_value(net.weight(i));
      value.mul_(-1);
      residency.refresh(*net.blocks[i]);
      net.products[i].neg_();
      CHECK(at::equal(net.weight(i).draw(), value));
    }
  }
  residency.refresh(*net.blocks[3]);
  for (const size_t i : {3, 4})
    CHECK(test::error_of([&] { residency.host_value(net.weight(i)); }).code() ==
          ErrorCode::kInvalidArgument);
  const auto held = residency.hold(*net.blocks[1]);
  CHECK(test::error_of([&] { residency.refresh(*net.blocks[1]); }).code() == ErrorCode::kInternal);
}

TEST_CASE("The device never holds more than its capacity", "[residency]") {
  constexpr int kBlocks = 8;
  Matrices net(kBlocks);
  // Three slots, and what a block computes.
  const auto transfer =
      make_simulated_device({.capacity = 3 * kMatrixBytes + 1024, .poison = true});
  Residency residency(net.all(), spread_residents(kBlocks, 0, Place::kHost, 2), *transfer);
  StreamingRunner runner(direct, {&residency});
  for (int pass = 0; pass < 3; ++pass) {
    for (int i = 0; i < kBlocks; ++i) (void)runner.run(*net.blocks[i], {net.x});
  }
  CHECK(transfer->stats().peak_bytes <= transfer->stats().capacity);
  CHECK(transfer->stats().peak_bytes > 3 * kMatrixBytes);
  // A weight that is drawn while its block is away has no room, and says so.
  residency.refresh(*net.blocks[0]);
  const Error full = test::error_of([&] { (void)net.weight(0).draw(); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "4.0 KiB more"));
  CHECK(net.is_right(runner, 0));
}

TEST_CASE("Where the slots do not fit nothing is changed", "[residency]") {
  Matrices net(4);
  const void* const before = net.weight(1).draw().data_ptr();
  const auto transfer = make_simulated_device({.capacity = 2 * kMatrixBytes});
  const Error full = test::error_of(
      [&] { Residency(net.all(), spread_residents(4, 0, Place::kHost, 2), *transfer); });
  CHECK(full.code() == ErrorCode::kOutOfMemory);
  CHECK(test::mentions(full, "3 places for blocks that come and go"));
  CHECK(test::mentions(full, "8.0 KiB of 8.0 KiB"));
  CHECK(transfer->stats().live_bytes == 0);
  CHECK(net.weight(1).draw().data_ptr() == before);
  Residency smaller(net.all(), spread_residents(4, 0, Place::kHost, 1), *transfer);
  CHECK(transfer->stats().live_bytes == 2 * kMatrixBytes);
}

TEST_CASE("A block that fails lets go of its weights", "[residency]") {
  Matrices net(5);
  const auto transfer = make_simulated_device({.poison = true});
  Residency residency(net.all(), spread_residents(5, 0, Place::kHost, 0), *transfer);
  StreamingRunner runner(direct, {&residency});
  for (int i = 0; i < 3; ++i) {
    net.blocks[2]->probe = [] { throw Error(ErrorCode::kCancelled, "enough"); };
    CHECK(net.wrong(runner, {0, 1}) == 0);
    CHECK(test::error_of([&] { runner.run(*net.blocks[2], {net.x}); }).code() ==
          ErrorCode::kCancelled);
    net.blocks[2]->probe = [] {};
    CHECK(net.wrong(runner, forward_order(5)) == 0);
  }
}

TEST_CASE("A copy that fails is told, and tried again", "[residency]") {
  for (const Place place : {Place::kHost, Place::kDisk}) {
    Matrices net(5);
    WatchedPort transfer;
    Residency residency(net.all(), spread_residents(5, 0, place, 1), transfer);
    StreamingRunner runner(direct, {&residency});
    CHECK(net.wrong(runner, forward_order(5)) == 0);
    transfer.fails_at = transfer.copies + 1;
    const Error failed = test::error_of([&] {
      for (int pass = 0; pass < 2; ++pass) net.wrong(runner, forward_order(5));
    });
    CHECK(failed.code() == ErrorCode::kEnvironment);
    for (int pass = 0; pass < 2; ++pass) CHECK(net.wrong(runner, forward_order(5)) == 0);
  }
}

TEST_CASE("Weights that cannot be sent away are named", "[residency]") {
  const auto transfer = make_simulated_device({});
  const auto refused = [&](const std::function<void(Weight&)>& change) {
    Matrices net(2);
    change(net.weight(1));
    return test::error_of(
        [&] { Residency(net.all(), spread_residents(2, 0, Place::kHost), *transfer); });
  };
  const Error trained = refused([](Weight& weight) { weight.state().set_trainable(true); });
  CHECK(test::mentions(trained, "blocks.1"));
  CHECK(test::mentions(trained, "linear.weight"));
  CHECK(test::mentions(refused([](Weight& weight) {
                         weight.state().set_store(
                             std::make_shared<Doubled>(weight.state().store()));
                       }),
                       "changed before"));
  CHECK(test::mentions(refused([](Weight& weight) { weight.state().set_store(nullptr); }),
                       "before it is loaded"));
  Matrices net(2);
  CHECK(test::error_of([&] { Residency(net.all(), {}, *transfer); }).code() ==
        ErrorCode::kInvalidArgument);
}

TEST_CASE("Two components stream through one transfer", "[residency]") {
  Matrices encoder(3), denoiser(4);
  const auto transfer = make_simulated_device({.poison = true});
  auto first = std::make_unique<Residency>(encoder.all(), spread_residents(3, 0, Place::kHost, 1),
                                           *transfer);
  Residency second(denoiser.all(), spread_residents(4, 1, Place::kDisk, 1), *transfer);
  StreamingRunner runner(direct, {first.get(), &second});
  for (int i = 0; i < 2; ++i) {
    CHECK(encoder.wrong(runner, forward_order(3)) == 0);
    CHECK(denoiser.wrong(runner, forward_order(4)) == 0);
  }
  // One leaves by being forgotten.
  first.reset();
  CHECK(transfer->stats().live_bytes == 2 * kMatrixBytes);
  StreamingRunner rest(direct, {&second});
  CHECK(denoiser.wrong(rest, forward_order(4)) == 0);
}

}  // namespace atelier::memory
