// Host memory that processes share, and blocks that rest there.
#include "memory/shared_slabs.h"

#include <csignal>
#include <cstring>
#include <optional>
#include <set>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "atelier/host/stop.h"
#include "atelier/host/weight_state.h"

#include "memory/matrices.h"
#include "memory/quantized_store.h"
#include "memory/residency.h"
#include "support/files.h"

namespace atelier::memory {
namespace {

using at::Tensor;
using test::forward_order;
using test::kMatrixBytes;
using test::kSide;
using test::Matrices;

constexpr int64_t kBytes = int64_t{3} << 20;

// Runs `work` in a process of its own; returns how that ended, as waitpid() says it.
class Child {
 public:
  template <typename F>
  explicit Child(F&& work) : process_(fork()) {
    if (process_ == 0) _exit(work());
  }
  void kill() const {
    ::kill(process_, SIGKILL);
    wait();
  }
  int wait() const {
    int status = -1;
    waitpid(process_, &status, 0);
    return status;
  }

 private:
  pid_t process_;
};

int64_t sum_of(const std::shared_ptr<void>& memory) {
  int64_t sum = 0;
  for (int64_t i = 0; i < kBytes; ++i) sum += static_cast<const uint8_t*>(memory.get())[i];
  return sum;
}

void fill_with_ones(void* memory) {
  std::memset(memory, 1, kBytes);
}

TEST_CASE("What a process shares is there once, and another one finds it", "[shared_slabs]") {
  const auto slabs = SharedSlabs::make();
  REQUIRE(slabs != nullptr);
  const int64_t empty = slabs->bytes();
  const auto mine = slabs->take("a", kBytes, fill_with_ones);
  const int64_t parent = getpid();
  const Child child([&] {
    const auto opened = SharedSlabs::open(parent, slabs->descriptor());
    if (opened == nullptr) return 1;
    const auto found = opened->take("a", kBytes, [](void*) { _exit(2); });
    if (sum_of(found) != kBytes) return 3;
    const auto other =
        opened->take("b", kBytes, [](void* memory) { std::memset(memory, 2, kBytes); });
    if (opened->bytes() - empty < 2 * kBytes) return 4;
    return 0;
  });
  CHECK(child.wait() == 0);
  CHECK(sum_of(mine) == kBytes);
  // The other one is gone without letting go; what it alone has put there may stay until the end.
  CHECK(slabs->bytes() - empty >= kBytes);
  CHECK(slabs->bytes() - empty <= 2 * kBytes + (64 << 10));
}

TEST_CASE("Shared memory goes when nobody has it, and is filled anew", "[shared_slabs]") {
  const auto slabs = SharedSlabs::make();
  const auto other = SharedSlabs::open(getpid(), slabs->descriptor());
  REQUIRE(other != nullptr);
  int fills = 0;
  const auto fill = [&](void* memory) {
    ++fills;
    fill_with_ones(memory);
  };
  auto mine = slabs->take("a", kBytes, fill), theirs = other->take("a", kBytes, fill);
  CHECK(fills == 1);
  const int64_t before = slabs->bytes();
  mine.reset();
  CHECK(slabs->bytes() == before);
  CHECK(sum_of(theirs) == kBytes);
  theirs.reset();
  CHECK(slabs->bytes() == before - kBytes);
  mine = slabs->take("a", kBytes, fill);
  CHECK(fills == 2);
  CHECK(sum_of(mine) == kBytes);
}

TEST_CASE("What a process has begun to fill when it dies or fails, the next one fills",
          "[shared_slabs]") {
  const auto slabs = SharedSlabs::make();
  const int64_t parent = getpid();
  const Child child([&] {
    const auto opened = SharedSlabs::open(parent, slabs->descriptor());
    opened->take("a", kBytes, [](void* memory) {
      fill_with_ones(memory);
      raise(SIGKILL);
    });
    return 1;
  });
  CHECK(WIFSIGNALED(child.wait()));
  const auto failing = [](void*) { throw Error(ErrorCode::kDataLoss, "the file is shorter"); };
  test::expect_error(ErrorCode::kDataLoss, {"the file is shorter"},
                     [&] { slabs->take("a", kBytes, failing); });
  const auto memory = slabs->take("a", kBytes, [](void* begin) {
    CHECK(static_cast<const uint8_t*>(begin)[kBytes - 1] == 0);
    fill_with_ones(begin);
  });
  CHECK(sum_of(memory) == kBytes);
}

TEST_CASE("Who waits for another process to fill sees that the run stops", "[shared_slabs]") {
  const auto slabs = SharedSlabs::make();
  const int64_t parent = getpid();
  int told[2];
  REQUIRE(pipe(told) == 0);
  const Child child([&] {
    const auto opened = SharedSlabs::open(parent, slabs->descriptor());
    opened->take("a", kBytes, [&](void*) {
      if (write(told[1], "f", 1) == 1) pause();
    });
    return 1;
  });
  char begun = 0;
  REQUIRE(read(told[0], &begun, 1) == 1);
  const ops::StopScope stop([] { throw Error(ErrorCode::kCancelled, "stopped"); });
  test::expect_error(ErrorCode::kCancelled, {"stopped"},
                     [&] { slabs->take("a", kBytes, fill_with_ones); });
  // The other process is still at it.
  CHECK(slabs->take("b", kBytes, fill_with_ones) != nullptr);
  child.kill();
}

TEST_CASE("What is no shared memory is not opened, and keys have their limits", "[shared_slabs]") {
  CHECK(SharedSlabs::open(getpid(), STDERR_FILENO) == nullptr);
  CHECK(SharedSlabs::open(getpid(), 9999) == nullptr);
  CHECK(SharedSlabs::open(int64_t{1} << 40, 3) == nullptr);
  const auto slabs = SharedSlabs::make();
  CHECK(slabs->take(std::string(1000, 'a'), kBytes, fill_with_ones) == nullptr);
  CHECK(slabs->take("nothing", 0, fill_with_ones) == nullptr);
  std::set<int64_t> begins;
  for (int64_t rank = 0; rank < 4; ++rank) {
    slabs->deal(rank, 4);
    begins.insert(slabs->first_of(60));
  }
  CHECK(begins == std::set<int64_t>{0, 15, 30, 45});
}

// One of the processes of a machine: a net of its own with the weights of the others.
struct Process {
  Matrices net;
  std::vector<Tensor> files;
  std::unique_ptr<TransferDevice> transfer = make_simulated_device({.poison = true});
  std::unique_ptr<Residency> residency;
  int loads = 0;
  std::optional<QuantizedKind> stored;

  Process(int blocks, std::optional<QuantizedKind> kind) : net(blocks), stored(kind) {
    for (auto& block : net.blocks) {
      files.push_back(block->linear.weight->draw());
      load(*block);
      net.products[files.size() - 1] = net.direct.run(*block, {net.x})[0];
      block->linear.weight->state().set_store(nullptr);
    }
    loads = 0;
  }

  void set(Block& block, const Tensor& value) {
    Weight& weight = *dynamic_cast<test::MatrixBlock&>(block).linear.weight;
    if (!stored) return weight.set(value);
    const at::ScalarType codes = *stored == QuantizedKind::kFp8 ? at::kFloat8_e4m3fn : at::kChar;
    const auto on_meta = at::TensorOptions(at::kMeta);
    weight.state().set_store(std::make_shared<QuantizedStore>(
        value.is_meta() ? Quantized{at::empty({kSide, kSide}, on_meta.dtype(codes)),
                                    at::empty({kSide}, on_meta)}
                        : quantize(value, *stored),
        at::kFloat));
  }
  void load(Block& block) {
    ++loads;
    for (size_t i = 0; i < net.blocks.size(); ++i)
      if (net.blocks[i].get() == &block) set(block, files[i]);
  }
  void place(ResidencyPlan plan, std::shared_ptr<SharedSlabs> slabs,
             const std::set<const Weight*>& on_demand = {}, const std::string& name = "net") {
    plan.shared = {.slabs = std::move(slabs), .name = name};
    const BlockLoading loading = {.load = [this](Block& block) { load(block); },
                                  .outline =
                                      [this](Block& block) {
                                        set(block, at::empty({kSide, kSide}, at::kMeta));
                                      }};
    residency = std::make_unique<Residency>(net.all(), plan, *transfer, on_demand, loading);
  }
  int wrong() {
    DirectRunner direct;
    StreamingRunner runner(direct, {residency.get()});
    return net.wrong(runner, forward_order(static_cast<int>(net.blocks.size())));
  }
};

TEST_CASE("Processes of a machine have blocks on the host once, and load them once",
          "[shared_slabs]") {
  constexpr int kBlocks = 8;
  const auto stored =
      GENERATE(std::optional<QuantizedKind>(), QuantizedKind::kFp8, QuantizedKind::kInt8);
  const bool is_demanded = GENERATE(false, true);
  const auto slabs = SharedSlabs::make();
  const int64_t empty = slabs->bytes();
  std::vector<std::unique_ptr<Process>> all;
  for (int64_t rank = 0; rank < 2; ++rank)
    all.push_back(std::make_unique<Process>(kBlocks, stored));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto own = SharedSlabs::open(getpid(), slabs->descriptor());
      own->deal(rank, 2);
      std::set<const Weight*> on_demand;
      if (is_demanded) on_demand.insert(&all[rank]->net.weight(3));
      all[rank]->place(spread_residents(kBlocks, 0, Place::kHost), own, on_demand);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t bytes = 0;
  for (const auto& process : all) {
    CHECK(process->wrong() == 0);
    const Residency::Stats stats = process->residency->stats();
    CHECK(stats.shared_bytes == stats.host_bytes);
    CHECK(process->transfer->stats().host_bytes == stats.host_bytes);
    bytes = stats.host_bytes;
  }
  const int64_t code_bytes = kSide * kSide + kSide * 4;
  CHECK(bytes == kBlocks * (stored ? code_bytes : kMatrixBytes));
  CHECK(all[0]->loads + all[1]->loads == kBlocks);
  const int64_t page = getpagesize();
  CHECK(slabs->bytes() - empty <= kBlocks * (bytes / kBlocks + page - 1) / page * page + page);
  all.clear();
  CHECK(slabs->bytes() - empty <= page);  // the table of keys
}

TEST_CASE("A block that finds no place among the shared ones is the process's own",
          "[shared_slabs]") {
  Process process(3, std::nullopt);
  process.place(spread_residents(3, 0, Place::kHost), SharedSlabs::make(), {},
                std::string(1000, 'n'));
  CHECK(process.residency->stats().shared_bytes == 0);
  CHECK(process.residency->stats().host_bytes == 3 * kMatrixBytes);
  CHECK(process.wrong() == 0);
}

TEST_CASE("Blocks that stay on the device are not shared", "[shared_slabs]") {
  Process process(4, std::nullopt);
  ResidencyPlan plan = spread_residents(4, 2, Place::kHost);
  for (size_t i = 0; i < 4; ++i)
    if (plan.blocks[i] == Place::kDevice) process.set(*process.net.blocks[i], process.files[i]);
  process.place(plan, SharedSlabs::make());
  CHECK(process.loads == 2);
  CHECK(process.residency->stats().shared_bytes == 2 * kMatrixBytes);
  CHECK(process.wrong() == 0);
}

TEST_CASE("A weight that is loaded as something else is named", "[shared_slabs]") {
  Process process(2, std::nullopt);
  process.files[1] = process.files[1].to(at::kDouble);
  test::expect_error(ErrorCode::kInternal, {"blocks.1", "not what it was expected to be"}, [&] {
    process.place(spread_residents(2, 0, Place::kHost), SharedSlabs::make());
  });
}

}  // namespace
}  // namespace atelier::memory
