// Times products over packed weights beside those over bfloat16, in turns, and prints how much
// longer processors are busy: the least of each, as what else runs on a machine only adds to it.
// "back": of the gradient that passes through the weight.
//
//   atelier-bench-packed [pairs] [rows...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>

#include "atelier/ops/linear.h"

#include "memory/four_bit.h"
#include "memory/packed.h"

namespace {

using namespace atelier;
using memory::Packed;
using memory::Packing;

constexpr int kSets = 3;  // of weights, so that none stays in the cache

WeightPtr weight_of(Packed packed) {
  auto weight = std::make_shared<Weight>("weight", packed.shape);
  weight->state().set_store(
      std::make_shared<memory::PackedStore>(std::move(packed), at::kBFloat16));
  return weight;
}

Packed packed_matrix(Packing packing, int64_t rows, int64_t columns) {
  if (packing == Packing::kNf4)
    return memory::quantize_4bit(at::randn({rows, columns}) * 0.02, packing);
  const memory::BlockSize block = memory::block_size(packing);
  const at::Tensor blocks =
      at::randint(0, 256, {rows * columns / block.values, block.bytes}, at::kByte);
  for (const int64_t at : {int64_t{1}, int64_t{3}, block.bytes - 1})
    blocks.select(1, at).fill_(0x1c);  // scales of about 0.004
  return {packing, {rows, columns}, {blocks.view({rows, -1})}};
}

// Time of processors: other programs on the machine take none of it.
double seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_of(const at::Tensor& x, const WeightPtr& weight, bool is_back) {
  if (is_back) {
    const at::Tensor leaf = x.detach().requires_grad_();
    const at::Tensor y = ops::linear(leaf, weight, nullptr, {});
    const at::Tensor grad = at::ones_like(y);
    const double begin = seconds_now();
    torch::autograd::grad({y}, {leaf}, {grad});
    return seconds_now() - begin;
  }
  const at::NoGradGuard no_grad;
  const double begin = seconds_now();
  ops::linear(x, weight, nullptr, {});
  return seconds_now() - begin;
}

struct Times {
  double plain = 0, packed = 0;  // seconds
};

void print(int64_t rows, const std::string& what, const Times& times, bool is_back) {
  std::printf("%5ld rows, %-21s %s: bf16 %8.2f ms, packed %8.2f ms, ratio %.3f\n",
              static_cast<long>(rows), what.c_str(), is_back ? "back   " : "forward",
              1e3 * times.plain, 1e3 * times.packed, times.packed / times.plain);
  std::fflush(stdout);
}

Times compare(int64_t rows, int64_t in, int64_t out, Packing packing, int pairs, bool is_back) {
  std::vector<WeightPtr> plain, packed;
  for (int i = 0; i < kSets; ++i) {
    plain.push_back(std::make_shared<Weight>("weight", std::vector<int64_t>{out, in}));
    plain.back()->set((at::randn({out, in}) * 0.02).to(at::kBFloat16));
    packed.push_back(weight_of(packed_matrix(packing, out, in)));
  }
  const at::Tensor x = at::randn({rows, in}).to(at::kBFloat16);
  constexpr double kMost = std::numeric_limits<double>::max();
  Times least = {.plain = kMost, .packed = kMost};
  for (int i = -2; i < pairs; ++i) {
    const auto set = static_cast<size_t>((i + kSets) % kSets);
    const bool is_first = i % 2 == 0;  // each goes first as often
    double a = 0, b = 0;
    if (is_first) a = seconds_of(x, plain[set], is_back);
    b = seconds_of(x, packed[set], is_back);
    if (!is_first) a = seconds_of(x, plain[set], is_back);
    if (i < 0) continue;
    least.plain = std::min(least.plain, a), least.packed = std::min(least.packed, b);
  }
  print(rows, c10::str(out, " x ", in, ", ", memory::packing_name(packing)), least, is_back);
  return least;
}

// The matrices of a block of Qwen-Image that every row meets: queries, keys, values and outputs of
// attention, and the two of the MLP.
void compare_block(int64_t rows, const Times& square, int pairs, bool is_back) {
  const Times up = compare(rows, 3072, 12288, Packing::kNf4, pairs, is_back),
              down = compare(rows, 12288, 3072, Packing::kNf4, pairs, is_back);
  print(rows, "all of a block, nf4",
        {.plain = 4 * square.plain + up.plain + down.plain,
         .packed = 4 * square.packed + up.packed + down.packed},
        is_back);
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 9;
  std::vector<int64_t> rows = {1024, 4096};
  if (argc > 2) rows.clear();
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  for (const int64_t count : rows) {
    for (const bool is_back : {false, true}) {
      for (const Packing packing : {Packing::kQ4_0, Packing::kQ4_K, Packing::kQ8_0})
        compare(count, 3072, 3072, packing, pairs, is_back);
      compare_block(count, compare(count, 3072, 3072, Packing::kNf4, pairs, is_back), pairs,
                    is_back);
    }
  }
  return 0;
}
