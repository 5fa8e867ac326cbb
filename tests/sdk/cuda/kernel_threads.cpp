// Plays kernels on the CPU, each lane a thread, for the thread sanitizer: it reports what lanes
// write and read without a barrier between. A barrier orders what lanes do before and behind it; a
// shuffle does not, on a GPU and here. A kernel that kernel_player.cpp refuses may not end.
#include <atomic>
#include <barrier>
#include <bit>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

constinit thread_local dim3 threadIdx, blockIdx;

namespace {

// What lanes give to shuffles: the number of the shuffle, counted from 1, above a value's bits. Two
// halves take turns: a lane that is two shuffles ahead has seen that all have taken their values.
struct Warp {
  std::atomic<uint64_t> given[2][warpSize] = {};
};

struct Block {
  std::barrier<> barrier;
  std::vector<Warp> warps;
};

Block* block = nullptr;
thread_local uint64_t shuffles = 0;

}  // namespace

void play(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  Block own{std::barrier<>(threads), std::vector<Warp>(threads / warpSize)};
  block = &own;
  std::vector<std::jthread> lanes;
  for (unsigned t = 0; t < threads; ++t) {
    lanes.emplace_back([=, &kernel] {
      threadIdx.x = t;
      for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        kernel();
        __syncthreads();
      }
    });
  }
}

void play_uninitialized(void*, size_t) {}

void __syncthreads(std::source_location) {
  block->barrier.arrive_and_wait();
}

float __shfl_xor_sync(unsigned, float value, int lane_mask, std::source_location) {
  const uint64_t number = ++shuffles;
  auto& given = block->warps[threadIdx.x / warpSize].given[number % 2];
  const unsigned lane = threadIdx.x % warpSize;
  given[lane].store(number << 32 | std::bit_cast<uint32_t>(value), std::memory_order_relaxed);
  for (const auto& other : given)
    while (other.load(std::memory_order_relaxed) >> 32 != number) std::this_thread::yield();
  const uint64_t taken =
      given[lane ^ static_cast<unsigned>(lane_mask)].load(std::memory_order_relaxed);
  return std::bit_cast<float>(static_cast<uint32_t>(taken));
}
