#include "memory/slab.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/strides.h>

namespace atelier::memory {

at::Tensor SlabSlice::in(const at::Tensor& slab, std::shared_ptr<void> held) const {
  const c10::InferenceMode normal(false);
  auto* const data = static_cast<uint8_t*>(slab.data_ptr()) + offset;
  return at::from_blob(
      data, sizes, strides, [slab, held = std::move(held)](void*) {},
      at::TensorOptions(dtype).device(slab.device()), slab.device());
}

void SlabSlice::fill(const at::Tensor& slab, const at::Tensor& value) const {
  const at::Tensor target = in(slab);
  if (value.is_cpu() && value.strides() == at::IntArrayRef(strides)) {
    if (bytes > 0)
      std::memcpy(target.data_ptr(), value.const_data_ptr(), static_cast<size_t>(bytes));
    return;
  }
  const at::NoGradGuard no_grad;
  target.copy_(value);
}

void SlabSlice::fill_part(const at::Tensor& part, int64_t part_begin,
                          const at::Tensor& value) const {
  const int64_t begin = std::max(offset, part_begin);
  const int64_t end = std::min(offset + bytes, part_begin + part.numel());
  if (begin >= end) return;
  at::Tensor dense = value;
  if (value.strides() != at::IntArrayRef(strides)) {
    const at::NoGradGuard no_grad;
    dense = at::empty_strided(sizes, strides, value.options()).copy_(value);
  }
  std::memcpy(static_cast<char*>(part.data_ptr()) + (begin - part_begin),
              static_cast<const char*>(dense.const_data_ptr()) + (begin - offset),
              static_cast<size_t>(end - begin));
}

SlabSlice SlabLayout::add(const at::Tensor& value, int64_t alignment) {
  SlabSlice slice;
  slice.offset = (bytes_ + alignment - 1) / alignment * alignment;
  slice.bytes = static_cast<int64_t>(value.nbytes());
  slice.sizes = value.sizes().vec();
  if (value.is_non_overlapping_and_dense()) {
    slice.strides = value.strides().vec();
  } else {
    const auto strides = c10::contiguous_strides(value.sizes());
    slice.strides.assign(strides.begin(), strides.end());
  }
  slice.dtype = value.scalar_type();
  bytes_ = slice.offset + slice.bytes;
  return slice;
}

}  // namespace atelier::memory
