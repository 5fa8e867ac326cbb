// Blocks of which each of several processes has a part; threads stand in for processes.
#include "memory/slab_peers.h"

#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <thread>

#include "memory/direct.h"
#include "memory/matrices.h"
#include "memory/quantized_store.h"
#include "memory/residency.h"
#include "support/files.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::direct;
using test::forward_order;
using test::kMatrixBytes;
using test::Matrices;

// Where the parts of each gather meet, by its number.
class Board {
 public:
  explicit Board(int64_t size) : size_(size) {}

  int64_t size() const { return size_; }
  void put(int64_t number, int64_t rank, const Tensor& part) {
    const std::lock_guard lock(mutex_);
    parts_[number].emplace(rank, part.clone());
    changed_.notify_all();
  }
  void take(int64_t number, const Tensor& whole) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return std::ssize(parts_[number]) == size_; });
    for (const auto& [rank, part] : parts_[number])
      whole.narrow(0, rank * part.numel(), part.numel()).copy_(part);
  }

 private:
  const int64_t size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::map<int64_t, Tensor>> parts_;
};

class BoardPeers final : public SlabPeers {
 public:
  BoardPeers(Board& board, int64_t rank) : board_(board), rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return board_.size(); }
  std::function<void()> gather(const std::string& name, const Tensor& whole,
                               const Tensor& part) override {
    names.push_back(name);
    if (whole.numel() != size() * part.numel())
      throw Error(ErrorCode::kInternal, "parts of another size");
    const int64_t number = gathers++;
    if (number == fails_at) throw Error(ErrorCode::kPeerLost, "rank 1 is lost");
    board_.put(number, rank_, part);
    return [this, number, whole] { board_.take(number, whole); };
  }

  int64_t gathers = 0, fails_at = INT64_MAX;
  std::vector<std::string> names;

 private:
  Board& board_;
  int64_t rank_;
};

struct PeerOptions {
  Place place = Place::kHost;
  int64_t prefetch = 1;
  std::optional<QuantizedKind> stored = std::nullopt;
  bool is_turned = false;  // columns follow each other
  std::shared_ptr<ResidencyGroup> turns = nullptr;
};

// One of the processes: a net of its own, whose weights are those of the others.
struct Peer {
  Matrices net;
  std::shared_ptr<BoardPeers> peers;
  std::unique_ptr<TransferDevice> transfer = make_simulated_device({.poison = true});  // of its own
  std::unique_ptr<Residency> residency;
  std::unique_ptr<StreamingRunner> runner;
  int64_t most_loaded = 0;
  int wrong = 0;  // what came out of running the blocks

  Peer(int blocks, Board& board, int64_t rank, const PeerOptions& options,
       TransferDevice* shared = nullptr)
      : net(blocks), peers(std::make_shared<BoardPeers>(board, rank)) {
    std::map<const Block*, Tensor> files;
    for (auto& block : net.blocks) {
      if (options.stored) quantize_weight(*block, *options.stored);
      files.emplace(block.get(), block->linear.weight->draw());
      net.products[files.size() - 1] = net.direct.run(*block, {net.x})[0];
      block->linear.weight->state().set_store(nullptr);
    }
    const ResidencyPlan plan = {.blocks = std::vector(static_cast<size_t>(blocks), options.place),
                                .prefetch = options.prefetch,
                                .turns = options.turns,
                                .stays = std::vector<bool>(static_cast<size_t>(blocks)),
                                .shards = board.size(),
                                .peers = peers};
    const auto load = [&](Block& block) {
      auto& matrix = dynamic_cast<test::MatrixBlock&>(block);
      const Tensor value = files.at(&block);
      matrix.linear.weight->set(options.is_turned ? value.t().contiguous().t() : value);
      if (options.stored) quantize_weight(matrix, *options.stored);
      int64_t loaded = 0;
      for (const auto& each : net.blocks) loaded += each->linear.weight->is_loaded() ? 1 : 0;
      most_loaded = std::max(most_loaded, loaded);
    };
    residency = std::make_unique<Residency>(net.all(), plan, shared ? *shared : *transfer,
                                            std::set<const Weight*>(), BlockLoading{.load = load});
    runner = std::make_unique<StreamingRunner>(direct, std::vector{residency.get()});
  }

  static void quantize_weight(test::MatrixBlock& block, QuantizedKind kind) {
    block.linear.weight->state().set_store(
        std::make_shared<QuantizedStore>(quantize(block.linear.weight->draw(), kind), at::kFloat));
  }
};

// Runs `work` of each process, which says what is wrong, in a thread of its own.
std::vector<std::unique_ptr<Peer>> run_all(Board& board, int blocks, const PeerOptions& options,
                                           const std::function<int(Peer&)>& work) {
  std::vector<std::unique_ptr<Peer>> all;
  for (int64_t rank = 0; rank < board.size(); ++rank)
    all.push_back(std::make_unique<Peer>(blocks, board, rank, options));
  std::vector<std::thread> threads;
  for (auto& process : all) threads.emplace_back([&] { process->wrong = work(*process); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& process : all) CHECK(process->wrong == 0);
  return all;
}

// Forward and backward passes.
std::vector<int> there_and_back(int blocks, int steps = 1) {
  std::vector<int> order;
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < blocks; ++i) order.push_back(i);
    for (int i = blocks; i-- > 0;) order.push_back(i);
  }
  return order;
}

TEST_CASE("A block comes whole from the parts of all processes", "[slab_peers]") {
  constexpr int kBlocks = 7;
  const auto size = GENERATE(2, 3, 4);
  PeerOptions options = {.place = GENERATE(Place::kHost, Place::kDevice)};
  options.stored = GENERATE(std::optional<QuantizedKind>(), QuantizedKind::kFp8);
  Board board(size);
  const auto all = run_all(board, kBlocks, options, [&](Peer& process) {
    return process.net.wrong(*process.runner, there_and_back(kBlocks, /*steps=*/3));
  });
  for (const auto& process : all) {
    CHECK(process->most_loaded == 1);
    CHECK(process->peers->names == all.front()->peers->names);
    CHECK(process->peers->names.front() == "blocks.0");
  }
}

TEST_CASE("A process holds its part of the blocks, and slots", "[slab_peers]") {
  constexpr int kBlocks = 8;
  const auto size = GENERATE(2, 4);
  const PeerOptions options = {.place = GENERATE(Place::kHost, Place::kDevice), .prefetch = 2};
  Board board(size);
  const auto all = run_all(board, kBlocks, options, [&](Peer& process) {
    return process.net.wrong(*process.runner, there_and_back(kBlocks));
  });
  for (const auto& process : all) {
    const Residency::Stats stats = process->residency->stats();
    const int64_t parts = kBlocks * kMatrixBytes / size, slots = 3 * kMatrixBytes;
    CHECK(stats.host_bytes == (options.place == Place::kHost ? parts : 0));
    CHECK(stats.device_bytes == slots + (options.place == Place::kHost ? 0 : parts));
    CHECK(process->transfer->stats().host_bytes == stats.host_bytes);
    CHECK(process->transfer->stats().live_bytes == stats.device_bytes);
  }
}

// A matrix of several pages, each process's part of which is a multiple of them.
constexpr int64_t kWide = 256, kWideBytes = kWide * kWide * 4;
struct WideBlock final : Block {
  nn::Linear linear{this, "linear", kWide, kWide, /*bias=*/false};

  explicit WideBlock(nn::Module* parent) : Block(parent, "wide") {}
  std::string_view kind() const override { return "wide"; }
  Tensors forward(const Tensors& in) override { return {linear.forward(in[0])}; }
};

TEST_CASE("A process reads of a block its part alone", "[slab_peers]") {
  const int64_t rank = GENERATE(0, 1), half = kWideBytes / 2;
  const std::shared_ptr<void> file(
      mmap(nullptr, kWideBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
      [](void* pages) { munmap(pages, kWideBytes); });
  const Tensor value = at::from_blob(file.get(), {kWide, kWide}, at::TensorOptions());
  value.copy_(at::arange(kWide * kWide).view({kWide, kWide}));
  const Tensor mine = value.view({-1}).narrow(0, rank * half / 4, half / 4).clone();
  // Whoever touches the other part ends the program.
  REQUIRE(mprotect(static_cast<char*>(file.get()) + (1 - rank) * half, half, PROT_NONE) == 0);

  nn::Module root(nullptr, "");
  WideBlock block(&root);
  Board board(2);
  const auto transfer = make_simulated_device({});
  const ResidencyPlan plan = {.blocks = {GENERATE(Place::kHost, Place::kDevice)},
                              .shards = 2,
                              .peers = std::make_shared<BoardPeers>(board, rank)};
  const Residency residency({&block}, plan, *transfer, {},
                            BlockLoading{.load = [&](Block&) { block.linear.weight->set(value); }});
  CHECK(at::equal(residency.own_numbers(*block.linear.weight), mine));
}

TEST_CASE("Blocks that are still in slots are not gathered again", "[slab_peers]") {
  constexpr int kBlocks = 8, kSlots = 3, kSteps = 4;
  Board board(2);
  const auto all = run_all(board, kBlocks, {.prefetch = kSlots - 1}, [&](Peer& process) {
    return process.net.wrong(*process.runner, there_and_back(kBlocks, kSteps));
  });
  for (const auto& process : all) {
    const Residency::Stats stats = process->residency->stats();
    CHECK(stats.copies == process->peers->gathers);
    // The last ones of a pass are the first ones of the next.
    CHECK(stats.copies <= kSlots + kSteps * 2 * (kBlocks - kSlots + 1));
    CHECK(stats.copies >= kSteps * 2 * (kBlocks - kSlots));
    CHECK(stats.copied_bytes == stats.copies * kMatrixBytes);
  }
}

TEST_CASE("A weight that is drawn while its block is away comes from all", "[slab_peers]") {
  constexpr int kBlocks = 4;
  Board board(2);
  run_all(board, kBlocks, {.prefetch = 0}, [&](Peer& process) {
    int wrong = 0;
    for (size_t i = 0; i < kBlocks; ++i) {
      const Tensor value = process.net.weight(i).draw(), index = at::tensor({3, 1});
      wrong += !at::allclose(at::linear(process.net.x, value), process.net.products[i]);
      wrong += !at::equal(process.net.weight(i).draw_rows(index), value.index_select(0, index));
    }
    return wrong;
  });
}

TEST_CASE("What a process writes into its part is drawn by all after a refresh", "[slab_peers]") {
  constexpr int kBlocks = 4, kSteps = 3;
  const auto size = GENERATE(2, 3);
  const PeerOptions options = {.place = GENERATE(Place::kHost, Place::kDevice)};
  Board board(size);
  const auto all = run_all(board, kBlocks, options, [&](Peer& process) {
    int wrong = 0;
    for (int step = 0; step < kSteps; ++step) {
      wrong += process.net.wrong(*process.runner, there_and_back(kBlocks));
      for (size_t i = 0; i < kBlocks; ++i) {
        process.residency->own_numbers(process.net.weight(i)).neg_();
        process.residency->refresh(*process.net.blocks[i]);
        process.net.products[i].neg_();
      }
    }
    return wrong + process.net.wrong(*process.runner, there_and_back(kBlocks));
  });
  for (const auto& process : all) {
    const Weight& weight = process->net.weight(0);
    int64_t next = 0;
    for (int64_t part = 0; part < size; ++part) {
      const auto [begin, count] = process->residency->extent(weight, part);
      if (count == 0) continue;
      CHECK(begin == next);
      CHECK(begin % 256 == 0);
      next += count;
      if (part == process->peers->rank())
        CHECK(process->residency->own_numbers(weight).numel() == count);
    }
    CHECK(next == weight.numel());
    CHECK(process->residency->keeps_on_host(weight) == (options.place == Place::kHost));
  }
}

TEST_CASE("Numbers of a weight that was not contiguous are trained as of others", "[slab_peers]") {
  constexpr int kBlocks = 2;
  Board board(2);
  const auto all = run_all(board, kBlocks, {.is_turned = true}, [&](Peer& process) {
    int wrong = process.net.wrong(*process.runner, there_and_back(kBlocks));
    for (size_t i = 0; i < kBlocks; ++i) {
      process.residency->own_numbers(process.net.weight(i)).neg_();
      process.residency->refresh(*process.net.blocks[i]);
      process.net.products[i].neg_();
    }
    return wrong + process.net.wrong(*process.runner, there_and_back(kBlocks));
  });
  const auto [begin, count] = all[1]->residency->extent(all[1]->net.weight(0), 1);
  const Tensor value = all[1]->net.weight(0).draw().view({-1});
  CHECK(at::equal(all[1]->residency->own_numbers(all[1]->net.weight(0)),
                  value.narrow(0, begin, count)));
}

TEST_CASE("What a divided weight draws is known without its parts", "[slab_peers]") {
  Board board(2);
  const auto stored = GENERATE(std::optional<QuantizedKind>(), QuantizedKind::kFp8);
  run_all(board, 2, {.stored = stored}, [](Peer& process) {
    const int64_t before = process.peers->gathers;
    const bool is_known = drawn_dtype(process.net.weight(1)) == at::kFloat;
    return is_known && process.peers->gathers == before ? 0 : 1;
  });
}

TEST_CASE("Weights in 8 bits have no numbers that are trained", "[slab_peers]") {
  Board board(2);
  run_all(board, 2, {.stored = QuantizedKind::kFp8}, [](Peer& process) {
    try {
      (void)process.residency->own_numbers(process.net.weight(0));
      return 1;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument ? 0 : 1;
    }
  });
}

TEST_CASE("What is drawn alone does not bring other blocks", "[slab_peers]") {
  constexpr int kBlocks = 6;
  Board board(2);
  const auto all = run_all(board, kBlocks, {.prefetch = 2}, [](Peer& process) {
    int wrong = process.net.wrong(*process.runner, there_and_back(kBlocks));
    for (size_t i = 0; i < kBlocks; ++i) process.residency->refresh(*process.net.blocks[i]);
    const int64_t before = process.peers->gathers;
    for (const size_t i : {0, 3, 1, 5, 2, 4}) (void)process.net.weight(i).draw();
    wrong += process.peers->gathers != before + kBlocks;
    return wrong;
  });
}

TEST_CASE("Weights of divided components are drawn whichever has its turn", "[slab_peers]") {
  constexpr int kBlocks = 6;
  // The one that runs, the one that is expected then, and the one that is drawn from first.
  const auto [runs, next] = GENERATE(std::pair(0, 1), std::pair(1, 0), std::pair(0, 0));
  const auto first = GENERATE(0, 1);
  Board boards[2] = {Board(2), Board(2)};
  std::vector<std::unique_ptr<TransferDevice>> devices;
  std::vector<std::array<std::unique_ptr<Peer>, 2>> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    devices.push_back(make_simulated_device({.poison = true}));
    const PeerOptions options = {.prefetch = 2, .turns = std::make_shared<ResidencyGroup>()};
    for (int i = 0; i < 2; ++i)
      ranks[rank][i] =
          std::make_unique<Peer>(kBlocks, boards[i], rank, options, devices[rank].get());
  }
  const auto run = [](Peer& peer, Peer& then) {
    int wrong = peer.net.wrong(*peer.runner, forward_order(kBlocks));
    then.residency->expect();
    for (int i = kBlocks; i-- > 0;) wrong += !peer.net.is_right(*peer.runner, i);
    return wrong;
  };
  const auto draw = [](Peer& peer) {
    int wrong = 0;
    for (const size_t i : {0, 3, 1, 5, 2, 4}) {
      const Tensor value = peer.net.weight(i).draw();
      wrong += !at::allclose(at::linear(peer.net.x, value), peer.net.products[i]);
    }
    return wrong;
  };
  std::vector<int> wrong(2);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank, runs = runs, next = next] {
      try {
        auto& [one, two] = ranks[rank];
        Peer* const peers[2] = {one.get(), two.get()};
        wrong[rank] = run(*peers[runs], *peers[next]) + draw(*peers[first]) +
                      draw(*peers[1 - first]) + run(*peers[next], *peers[runs]);
      } catch (const Error&) {
        wrong[rank] = -1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>{0, 0});
  for (const auto& experts : ranks) {
    int64_t there = 0;
    for (const auto& peer : experts) {
      const Residency::Stats stats = peer->residency->stats();
      there += stats.device_bytes - stats.away_bytes;
    }
    CHECK(there <= 3 * kMatrixBytes);
  }
}

// Whole slabs are known here: this process is the first of two, and the other one is never late.
class KnownPeers final : public SlabPeers {
 public:
  std::vector<Tensor> slabs;  // uint8

  int64_t rank() const override { return 0; }
  int64_t size() const override { return 2; }
  std::function<void()> gather(const std::string& /*name*/, const Tensor& whole,
                               const Tensor& part) override {
    for (const Tensor& slab : slabs) {
      if (at::equal(slab.narrow(0, 0, part.numel()), part))
        return [whole, slab] { whole.copy_(slab); };
    }
    throw Error(ErrorCode::kInternal, "no such slab");
  }
};

TEST_CASE("Gathers hide behind computing", "[slab_peers]") {
  constexpr int kBlocks = 24, kSteps = 4;
  // A share of the time that a block computes: what bringing one takes.
  const double share = GENERATE(0.3, 0.8, 1.5);
  Matrices net(kBlocks);
  const auto peers = std::make_shared<KnownPeers>();
  for (size_t i = 0; i < kBlocks; ++i)
    peers->slabs.push_back(net.weight(i).draw().clone().view(-1).view(at::kByte));
  const auto clock = std::make_shared<VirtualClock>();
  const auto transfer = make_simulated_device(
      {.bytes_per_second = double{kMatrixBytes} / share, .poison = true, .clock = clock});
  const ResidencyPlan plan = {
      .blocks = std::vector(size_t{kBlocks}, Place::kHost), .shards = 2, .peers = peers};
  Residency residency(net.all(), plan, *transfer);
  StreamingRunner runner(direct, {&residency});
  for (auto& block : net.blocks) block->probe = [&] { clock->advance(1); };

  CHECK(net.wrong(runner, there_and_back(kBlocks, kSteps)) == 0);
  const double gathering = share * static_cast<double>(residency.stats().copies);
  const double seen = clock->now() - kSteps * 2 * kBlocks;
  if (share <= 0.8) CHECK(seen <= 0.1 * gathering);
  // What is slower than computing takes its own time, less what is in slots.
  if (share > 1) CHECK(clock->now() <= 1.05 * gathering + kBlocks);
}

TEST_CASE("A process that is lost ends the hold that waits for it", "[slab_peers]") {
  Board board(1);
  Peer process(4, board, 0, {});
  process.peers->fails_at = 0;
  REQUIRE_THROWS_AS(process.runner->run(*process.net.blocks[0], {process.net.x}), Error);
}

TEST_CASE("A process that ends with an error does not wait for parts of the others",
          "[slab_peers]") {
  Board board(2);  // of which only one is there
  try {
    Peer process(4, board, 0, {});
    process.peers->fails_at = 1;  // the first gather has begun then
    process.residency->hold(*process.net.blocks[0]);
    FAIL("the other process came");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kPeerLost);
  }
}

TEST_CASE("A plan says how many processes there are", "[slab_peers]") {
  Matrices net(2);
  const auto transfer = make_simulated_device({});
  const ResidencyPlan plan = {.blocks = {Place::kHost, Place::kHost}, .shards = 2};
  REQUIRE_THROWS_AS(Residency(net.all(), plan, *transfer), Error);
}

}  // namespace
}  // namespace atelier::memory
