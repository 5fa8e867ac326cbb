// How processes divide the slab of a block: each of them keeps an equal part.
#pragma once

#include <cstdint>

#include "memory/slab.h"

namespace atelier::memory {

// Bytes of each of `count` parts: whole multiples of kPartBytes.
int64_t part_bytes(int64_t slab_bytes, int64_t count);

// Reserves space for `value` in a slab that is divided: see kPartBytes.
SlabSlice add_divided(SlabLayout& layout, const at::Tensor& value);

// Numbers of a tensor that follow each other, counted flat. There may be none.
struct NumberRange {
  int64_t begin = 0, count = 0;
};
// Bytes that follow each other in a part.
struct ByteRange {
  int64_t begin = 0, count = 0;
};
// What of `slice` lies in part number `part`, which has `bytes` as all parts of its slab.
NumberRange numbers_in(const SlabSlice& slice, int64_t bytes, int64_t part);
ByteRange bytes_in(const SlabSlice& slice, int64_t bytes, int64_t part);

}  // namespace atelier::memory
