// The player of kernels refuses what is undefined on a GPU, and shows what lanes read too early.
#include <cmath>
#include <vector>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/row_codes.h"
#include "support/catch.h"

namespace atelier::ops::cuda {
namespace {

using Catch::Contains;

constexpr int kLanes = 4 * kWarp;

// Runs `kernel` of two blocks. Returns what each lane left.
std::vector<float> played(void (*kernel)(float*)) {
  std::vector<float> out(2 * kLanes);
  queue_kernel(kernel, 2, kLanes, nullptr, out.data());
  return out;
}

__device__ float& of_lane(float* out) {
  return out[blockIdx.x * kLanes + threadIdx.x];
}

__global__ void add_up(float* out) {
  __shared__ float shared[kLanes / kWarp];
  ATELIER_UNINITIALIZED(shared);
  float sum = float(threadIdx.x);
  for (int far = kWarp / 2; far > 0; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = sum;
  __syncthreads();
  of_lane(out) = shared[0] + shared[1] + shared[2] + shared[3];
}

__global__ void read_before_writing(float* out) {
  __shared__ float shared[kLanes];
  ATELIER_UNINITIALIZED(shared);
  of_lane(out) = shared[threadIdx.x];
  shared[threadIdx.x] = 1;
}

__global__ void read_without_barrier(float* out) {
  __shared__ float shared[kLanes];
  ATELIER_UNINITIALIZED(shared);
  shared[threadIdx.x] = 1;
  of_lane(out) = shared[threadIdx.x ^ kWarp];
}

__global__ void end_before_barrier(float*) {
  if (threadIdx.x < kWarp) __syncthreads();
}

__global__ void wait_at_two_barriers(float*) {
  if (threadIdx.x < kWarp)
    __syncthreads();
  else
    __syncthreads();
}

__global__ void shuffle_half_a_warp(float* out) {
  if (threadIdx.x % 2 == 0) of_lane(out) = __shfl_xor_sync(0xffffffffu, 1.0f, 2);
}

__global__ void shuffle_beside_a_barrier(float* out) {
  if (threadIdx.x % 2 == 0)
    of_lane(out) = __shfl_xor_sync(0xffffffffu, 1.0f, 2);
  else
    __syncthreads();
}

__global__ void shuffle_by_a_mask(float* out) {
  of_lane(out) = __shfl_xor_sync(0xffffu, 1.0f, 2);
}

__global__ void load_beside_a_pack(float* out) {
  load_pack<Float32>(out + 1, 4, /*aligned=*/true);
}

__global__ void store_beside_a_pack(float* out) {
  store_pack<Float32>(out + 2, Pack(), 4, /*aligned=*/true);
}

__global__ void store_beside_codes(float* out) {
  Place place = {};
  place.width = 4, place.is_active = true;
  const Output codes = {reinterpret_cast<uint8_t*>(out) + 2, 4, /*is_aligned=*/true};
  put_codes<Float32>(codes, place, 0, Codes<Float32>());
}

}  // namespace

TEST_CASE("Lanes of a played block have each other's values behind shuffles and barriers",
          "[player]") {
  for (const float sum : played(add_up)) CHECK(sum == float(kLanes * (kLanes - 1) / 2));
}

TEST_CASE("Shared memory that is read too early is NaN in each played block", "[player]") {
  for (const float value : played(read_before_writing)) CHECK(std::isnan(value));
  const std::vector<float> early = played(read_without_barrier);
  for (int block = 0; block < 2; ++block) {
    int count = 0;
    for (int t = 0; t < kLanes; ++t) count += std::isnan(early[block * kLanes + t]);
    CHECK(count > 0);
    CHECK(count < kLanes);
  }
}

TEST_CASE("Divergence at a barrier is refused, and lanes are named", "[player]") {
  CHECK_THROWS_WITH(played(end_before_barrier),
                    Contains("block 0: divergence at a barrier: lane 0 is at the "
                             "barrier of kernel_player_test.cpp:") &&
                        Contains("lane 32 has ended"));
  CHECK_THROWS_WITH(played(wait_at_two_barriers),
                    Contains("divergence at a barrier") &&
                        Contains("lane 32 is at the barrier of kernel_player_test.cpp:"));
}

TEST_CASE("A shuffle that not all lanes of a warp reach is refused", "[player]") {
  CHECK_THROWS_WITH(played(shuffle_half_a_warp),
                    Contains("divergence in a warp: lane ") &&
                        Contains("is at the shuffle of kernel_player_test.cpp:") &&
                        Contains("has ended"));
  CHECK_THROWS_WITH(played(shuffle_beside_a_barrier),
                    Contains("divergence in a warp") && Contains("is at the barrier of"));
  CHECK_THROWS_WITH(played(shuffle_by_a_mask), Contains("only shuffles of whole warps"));
}

TEST_CASE("Packs and codes at addresses that a GPU cannot take are refused", "[player]") {
  CHECK_THROWS_WITH(played(load_beside_a_pack),
                    Contains("misaligned address") && Contains("no multiple of 16 bytes"));
  CHECK_THROWS_WITH(played(store_beside_a_pack), Contains("misaligned address"));
  CHECK_THROWS_WITH(played(store_beside_codes), Contains("no multiple of 4 bytes"));
}

TEST_CASE("Launches beyond CUDA's limits are refused", "[player]") {
  for (const int threads : {0, 16, 48, 1056}) {
    CHECK_THROWS_WITH(
        queue_kernel(read_before_writing, 1, threads, nullptr, static_cast<float*>(nullptr)),
        Contains("illegal launch: 1 blocks of " + std::to_string(threads) + " threads"));
  }
  for (const int64_t blocks : {int64_t(0), int64_t(1) << 31}) {
    CHECK_THROWS_WITH(
        queue_kernel(read_before_writing, blocks, 32, nullptr, static_cast<float*>(nullptr)),
        Contains("illegal launch"));
  }
}

}  // namespace atelier::ops::cuda
