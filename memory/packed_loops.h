// The loops of packed weights on the CPU, for each instruction set; see packed_loops.cpp.
#pragma once

#include <cstdint>

namespace atelier::memory {

// `out` is of the element type that the table is for: float32, bfloat16 or float16. `ahead`: how
// many blocks behind one those lie that are soon to be read.
struct PackedLoops {
  // Values of `count` blocks of a GGUF packing, by its number.
  void (*blocks[10])(const uint8_t* in, int64_t count, int64_t ahead, void* out);
  // `count` values of 4-bit codes, whole blocks of `block` with a scale each; `block` is a multiple
  // of 32.
  void (*four_bit)(const uint8_t* codes, const float* values, const float* scales, int64_t block,
                   int64_t count, int64_t ahead, void* out);
  // `count` scales of 4-bit codes that are codes themselves: values[code] times the scale of their
  // `block`, plus `offset`.
  void (*scales)(const uint8_t* codes, const float* values, const float* scales, int64_t block,
                 float offset, int64_t count, float* out);

  static const PackedLoops baseline[], avx2[], avx512[];
};

}  // namespace atelier::memory
