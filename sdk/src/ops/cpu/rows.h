// Rows of tensors for the loops of operators, which are shared out to threads.
#pragma once

#include <vector>

#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>

#include "ops/autograd_support.h"
#include "ops/kernel_choice.h"

namespace atelier::ops::cpu {

// Kernels of the CPU take rows of any width and float64.
inline constexpr KernelLimits kNoLimits = {.takes_float64 = true};

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };
InstructionSet instruction_set();  // the best of this machine

// The place of a dtype in tables of loops: float32, float64, bfloat16, float16.
int element_of(const at::Tensor& x);

// An operator's loops for the type of `x` and the best instruction set of this machine.
template <typename Loops>
const Loops& loops_for(const at::Tensor& x) {
#if defined(__x86_64__)
  if (instruction_set() == InstructionSet::kAvx512) return Loops::avx512[element_of(x)];
  if (instruction_set() == InstructionSet::kAvx2) return Loops::avx2[element_of(x)];
#endif
  return Loops::baseline[element_of(x)];
}

inline const char* at_element(const at::Tensor& t, int64_t element) {
  return static_cast<const char*>(t.const_data_ptr()) + element * t.element_size();
}
inline char* at_element(at::Tensor& t, int64_t element) {
  return static_cast<char*>(t.mutable_data_ptr()) + element * t.element_size();
}
// Null for an undefined tensor.
inline const void* at_element_or_null(const at::Tensor& t, int64_t element) {
  return t.defined() ? at_element(t, element) : nullptr;
}

// Modulations as the loops take them, in the type of sums, and their row of a sample.
at::Tensor wide_rows(const at::Tensor& t);
inline const char* row_of(const at::Tensor& rows, int64_t sample) {
  return at_element(rows, sample * rows.stride(0));
}

// Calls run(begin, end) for parts of [0, count), each of at least `grain` but the last, in threads.
void in_threads(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> run);

// Rows that one call of a loop takes, all of one sample.
struct Chunk {
  int64_t first, count, sample;
};

// The cut depends on shapes only, so that sums come out the same whatever the number of threads.
std::vector<Chunk> chunks_of(const Segments& rows, int64_t width);

// Calls run(chunk, its number).
template <typename F>
void for_each_chunk(const std::vector<Chunk>& chunks, const F& run) {
  in_threads(static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) run(chunks[c], c);
  });
}

// Sums over the rows of each sample, [S, width], gathered chunk by chunk.
class SampleSums {
 public:
  SampleSums(bool wanted, const at::Tensor& like, const std::vector<Chunk>& chunks, int64_t width);

  // Where a loop adds to the sums of a chunk; null where they are not wanted.
  void* of_chunk(int64_t c);

  // Columns [first, first + width) of the sums, in the dtype that was summed in; undefined where
  // they are not wanted.
  at::Tensor total(const std::vector<Chunk>& chunks, int64_t samples, int64_t first,
                   int64_t width) const;

 private:
  at::Tensor parts_;
};

// Rounds sums to the gradient that they are, where it is wanted.
inline void put_gradient(const at::Tensor& sums, at::Tensor& gradient) {
  if (gradient.defined()) gradient.copy_(sums.view(gradient.sizes()));
}

}  // namespace atelier::ops::cpu
