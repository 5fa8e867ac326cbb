#include "memory/divided_slab.h"

#include <algorithm>

#include "memory/slab_peers.h"

namespace atelier::memory {

int64_t part_bytes(int64_t slab_bytes, int64_t count) {
  return ((slab_bytes + count - 1) / count + kPartBytes - 1) / kPartBytes * kPartBytes;
}

SlabSlice add_divided(SlabLayout& layout, const at::Tensor& value) {
  return layout.add(value, value.numel() >= kLeastInBlocks ? kPartBytes : kSlabAlignment);
}

ByteRange bytes_in(const SlabSlice& slice, int64_t bytes, int64_t part) {
  const int64_t from = std::max(slice.offset, part * bytes);
  const int64_t to = std::min(slice.offset + slice.bytes, (part + 1) * bytes);
  return {from - part * bytes, std::max<int64_t>(0, to - from)};
}

NumberRange numbers_in(const SlabSlice& slice, int64_t bytes, int64_t part) {
  const ByteRange range = bytes_in(slice, bytes, part);
  if (range.count == 0) return {};
  const auto itemsize = static_cast<int64_t>(c10::elementSize(slice.dtype));
  return {.begin = (part * bytes + range.begin - slice.offset) / itemsize,
          .count = range.count / itemsize};
}

}  // namespace atelier::memory
