#include "ops/cpu/rows.h"

#include <ATen/Parallel.h>

namespace atelier::ops::cpu {

using at::Tensor;

InstructionSet instruction_set() {
#if defined(__x86_64__)
  static const InstructionSet best = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? InstructionSet::kAvx512
           : avx2 ? InstructionSet::kAvx2
                  : InstructionSet::kBaseline;
  }();
  return best;
#else
  return InstructionSet::kBaseline;
#endif
}

int element_of(const Tensor& x) {
  switch (x.scalar_type()) {
    case at::kDouble:
      return 1;
    case at::kBFloat16:
      return 2;
    case at::kHalf:
      return 3;
    default:
      return 0;
  }
}

Tensor wide_rows(const Tensor& t) {
  return t.to(wide(t));
}

// This file is compiled with OpenMP: at::parallel_for is a template over it.
void in_threads(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> run) {
  at::parallel_for(0, count, grain, run);
}

std::vector<Chunk> chunks_of(const Segments& rows, int64_t width) {
  const int64_t step = std::max<int64_t>(64, 16384 / std::max<int64_t>(width, 1));
  std::vector<Chunk> chunks;
  for (int64_t s = 0; s < rows.count(); ++s) {
    for (int64_t first = rows.offset(s); first < rows.offset(s + 1); first += step) {
      chunks.push_back({first, std::min(step, rows.offset(s + 1) - first), s});
    }
  }
  return chunks;
}

SampleSums::SampleSums(bool wanted, const Tensor& like, const std::vector<Chunk>& chunks,
                       int64_t width) {
  if (!wanted) return;
  parts_ =
      at::zeros({static_cast<int64_t>(chunks.size()), width}, like.options().dtype(wide(like)));
}

void* SampleSums::of_chunk(int64_t c) {
  return parts_.defined() ? at_element(parts_, c * parts_.size(1)) : nullptr;
}

Tensor SampleSums::total(const std::vector<Chunk>& chunks, int64_t samples, int64_t first,
                         int64_t width) const {
  if (!parts_.defined()) return Tensor();
  const Tensor parts = parts_.narrow(1, first, width);
  Tensor sums = at::zeros({samples, width}, parts_.options());
  for (size_t c = 0; c < chunks.size();) {
    size_t end = c;
    while (end < chunks.size() && chunks[end].sample == chunks[c].sample) ++end;
    Tensor to = sums.select(0, chunks[c].sample);
    at::sum_out(to, parts.slice(0, c, end), 0);
    c = end;
  }
  return sums;
}

}  // namespace atelier::ops::cpu
