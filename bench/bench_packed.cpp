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
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
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

void compare(int64_t rows, int64_t in, int64_t out, Packing packing, int pairs, bool is_back) {
  std::vector<WeightPtr> plain, packed;
  for (int i = 0; i < kSets; ++i) {
    plain.push_back(std::make_shared<Weight>("weight", std::vector<int64_t>{out, in}));
    plain.back()->set((at::randn({out, in}) * 0.02).to(at::kBFloat16));
    packed.push_back(weight_of(packed_matrix(packing, out, in)));
  }
  const at::Tensor x = at::randn({rows, in}).to(at::kBFloat16);
  double least_plain = std::numeric_limits<double>::max(), least_packed = least_plain;
  for (int i = -2; i < pairs; ++i) {
    const auto set = static_cast<size_t>((i + kSets) % kSets);
    const bool is_first = i % 2 == 0;  // each goes first as often
    double a = 0, b = 0;
    if (is_first) a = seconds_of(x, plain[set], is_back);
    b = seconds_of(x, packed[set], is_back);
    if (!is_first) a = seconds_of(x, plain[set], is_back);
    if (i < 0) continue;
    least_plain = std::min(least_plain, a), least_packed = std::min(least_packed, b);
  }
  std::printf("%5ld rows, %5ld x %5ld, %-5s %s: bf16 %8.2f ms, packed %8.2f ms, ratio %.3f\n",
              static_cast<long>(rows), static_cast<long>(out), static_cast<long>(in),
              std::string(memory::packing_name(packing)).c_str(), is_back ? "back   " : "forward",
              1e3 * least_plain, 1e3 * least_packed, least_packed / least_plain);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 9;
  std::vector<int64_t> rows = {1024, 4096};
  if (argc > 2) rows.clear();
  for (int i = 2; i < argc; ++i) rows.push_back(std::atoll(argv[i]));
  for (const int64_t count : rows) {
    for (const bool is_back : {false, true}) {
      for (const Packing packing : {Packing::kNf4, Packing::kQ4_0, Packing::kQ4_K, Packing::kQ8_0})
        compare(count, 3072, 3072, packing, pairs, is_back);
      compare(count, 3072, 12288, Packing::kNf4, pairs, is_back);
      compare(count, 12288, 3072, Packing::kNf4, pairs, is_back);
    }
  }
  return 0;
}
