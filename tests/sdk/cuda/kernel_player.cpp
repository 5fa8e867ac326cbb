// Plays kernels on the CPU, on one thread: block after block, each lane a fiber.
//
//   until all lanes of the block have ended:
//     take a warp that can go on: the last one, in 7 of 8 cases, so that some run far ahead; else
//     any
//       run its lanes, each until it ends or stops at a shuffle or at a barrier
//       where all 32 are at one shuffle, give them their values: they can go on
//     where no warp can go on, all lanes are at one barrier: they can go on
//   anything else is undefined on a GPU, and refused
//
// Chance is the same in each run. A block finds its shared memory full of NaN.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "sdk/cuda/fiber.h"

constinit thread_local dim3 threadIdx, blockIdx;

namespace {

using atelier::test::Fiber;

constexpr unsigned kMostThreads = 1024;
// Not a multiple of a page, so that stacks do not compete for the same lines of the caches.
constexpr size_t kStackBytes = (256 << 10) + 17 * 64;

enum class State { kCanGoOn, kAtShuffle, kAtBarrier, kEnded };

struct Lane {
  Fiber fiber;
  State state;
  std::source_location place;  // of the shuffle or the barrier
  float value;                 // that the shuffle is given, and gives
  int lane_mask;
};

std::string said(const Lane& lane) {
  if (lane.state == State::kEnded) return "has ended";
  const std::string path = lane.place.file_name();
  std::ostringstream text;
  text << (lane.state == State::kAtShuffle ? "is at the shuffle" : "is at the barrier") << " of "
       << path.substr(path.rfind('/') + 1) << ":" << lane.place.line();
  return text.str();
}

bool are_together(const Lane& a, const Lane& b) {
  const char *a_file = a.place.file_name(), *b_file = b.place.file_name();
  return a.state == b.state && a.place.line() == b.place.line() &&
         (a_file == b_file || std::strcmp(a_file, b_file) == 0);
}

class Player {
 public:
  void play(unsigned blocks, unsigned threads, const std::function<void()>& kernel);
  void stop(State state, std::source_location place);
  Lane& lane() { return lanes_[threadIdx.x]; }
  void come_to_shared(void* shared, size_t bytes);

 private:
  static void run_lane();
  void play_block();
  bool can_go_on(unsigned warp) const;
  void run_warp(unsigned warp);
  void shuffle(unsigned warp);
  void pass_barrier();
  [[noreturn]] void refuse(const std::string& what) const;
  void require_together(unsigned first, unsigned last, const std::string& what) const;

  const std::function<void()>* kernel_ = nullptr;
  std::vector<Lane> lanes_;
  std::unique_ptr<char[]> stacks_;  // of the most lanes that there were
  unsigned most_lanes_ = 0;
  std::vector<void*> shared_;  // that the block has come to
  std::string failure_;        // of the lane that ran last
  std::minstd_rand random_;
};

Player player;
std::mutex one_launch;  // shared memory is the program's

void Player::refuse(const std::string& what) const {
  throw std::runtime_error("block " + std::to_string(blockIdx.x) + ": " + what);
}

// Lanes [first, last): each does what the first one does.
void Player::require_together(unsigned first, unsigned last, const std::string& what) const {
  for (unsigned t = first + 1; t < last; ++t) {
    if (!are_together(lanes_[t], lanes_[first])) {
      refuse(what + ": lane " + std::to_string(first) + " " + said(lanes_[first]) + ", lane " +
             std::to_string(t) + " " + said(lanes_[t]));
    }
  }
}

void Player::play(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  if (blocks == 0 || blocks > 2147483647 || threads == 0 || threads > kMostThreads ||
      threads % warpSize != 0) {
    throw std::runtime_error("illegal launch: " + std::to_string(blocks) + " blocks of " +
                             std::to_string(threads) + " threads");
  }
  kernel_ = &kernel;
  lanes_.resize(threads);
  if (threads > most_lanes_) {
    stacks_ = std::make_unique_for_overwrite<char[]>(threads * kStackBytes);
    most_lanes_ = threads;
  }
  try {
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) play_block();
  } catch (...) {
    stacks_.reset();  // with what the sanitizer knows of lanes that have not ended
    most_lanes_ = 0;
    throw;
  }
}

void Player::play_block() {
  shared_.clear();
  random_.seed(blockIdx.x + 1);
  for (size_t t = 0; t < lanes_.size(); ++t) {
    lanes_[t].state = State::kCanGoOn;
    lanes_[t].fiber.start(stacks_.get() + t * kStackBytes, kStackBytes, run_lane);
  }
  const auto warps = static_cast<unsigned>(lanes_.size()) / warpSize;
  std::vector<unsigned> able;
  for (unsigned warp = 0;; run_warp(warp)) {
    if (can_go_on(warp) && random_() % 8 != 0) continue;
    able.clear();
    for (unsigned w = 0; w < warps; ++w)
      if (can_go_on(w)) able.push_back(w);
    if (able.empty()) {
      if (std::ranges::all_of(lanes_, [](const Lane& l) { return l.state == State::kEnded; }))
        return;
      pass_barrier();
      for (unsigned w = 0; w < warps; ++w) able.push_back(w);
    }
    warp = able[random_() % able.size()];
  }
}

// Lanes of a warp go on together.
bool Player::can_go_on(unsigned warp) const {
  return lanes_[warp * warpSize].state == State::kCanGoOn;
}

void Player::run_warp(unsigned warp) {
  const auto first = static_cast<unsigned>(random_() % warpSize);
  for (unsigned i = 0; i < warpSize; ++i) {
    threadIdx.x = warp * warpSize + (first + i) % warpSize;
    lane().fiber.resume();
    if (!failure_.empty()) {
      refuse("lane " + std::to_string(threadIdx.x) + ": " + std::exchange(failure_, {}));
    }
  }
  require_together(warp * warpSize, warp * warpSize + warpSize, "divergence in a warp");
  if (lanes_[warp * warpSize].state == State::kAtShuffle) shuffle(warp);
}

void Player::shuffle(unsigned warp) {
  Lane* lanes = &lanes_[warp * warpSize];
  float values[warpSize];
  for (unsigned i = 0; i < warpSize; ++i) values[i] = lanes[i].value;
  for (unsigned i = 0; i < warpSize; ++i) {
    lanes[i].value = values[i ^ static_cast<unsigned>(lanes[i].lane_mask)];
    lanes[i].state = State::kCanGoOn;
  }
}

void Player::pass_barrier() {
  require_together(0, static_cast<unsigned>(lanes_.size()), "divergence at a barrier");
  for (Lane& lane : lanes_) lane.state = State::kCanGoOn;
}

void Player::run_lane() {
  try {
    (*player.kernel_)();
  } catch (const std::exception& e) {
    player.failure_ = e.what();
  }
  player.lane().state = State::kEnded;
}

void Player::stop(State state, std::source_location place) {
  Lane& own = lane();
  own.state = state;
  own.place = place;
  Fiber::stop();
}

// Bytes of ones are NaN.
void Player::come_to_shared(void* shared, size_t bytes) {
  if (std::ranges::find(shared_, shared) != shared_.end()) return;
  shared_.push_back(shared);
  std::memset(shared, 0xff, bytes);
}

}  // namespace

void play(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  const std::lock_guard lock(one_launch);
  player.play(blocks, threads, kernel);
}

void play_uninitialized(void* shared, size_t bytes) {
  player.come_to_shared(shared, bytes);
}

void __syncthreads(std::source_location place) {
  player.stop(State::kAtBarrier, place);
}

float __shfl_xor_sync(unsigned mask, float value, int lane_mask, std::source_location place) {
  if (mask != 0xffffffffu || lane_mask < 0 || lane_mask >= static_cast<int>(warpSize))
    throw std::runtime_error("only shuffles of whole warps are played");
  Lane& own = player.lane();
  own.value = value;
  own.lane_mask = lane_mask;
  player.stop(State::kAtShuffle, place);
  return own.value;
}
