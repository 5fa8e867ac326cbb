#include "memory/slab.h"

#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/strides.h>

namespace atelier::memory {

namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

at::Tensor SlabPiece::in(const at::Tensor& slab, std::shared_ptr<void> held) const {
  const c10::InferenceMode normal(false);
  auto* const data = static_cast<uint8_t*>(slab.data_ptr()) + offset;
  return at::from_blob(
      data, sizes, strides, [slab, held = std::move(held)](void*) {},
      at::TensorOptions(dtype).device(slab.device()), slab.device());
}

void SlabPiece::fill(const at::Tensor& slab, const at::Tensor& value) const {
  const at::Tensor target = in(slab);
  if (value.is_cpu() && value.strides() == at::IntArrayRef(strides)) {
    if (bytes > 0)
      std::memcpy(target.data_ptr(), value.const_data_ptr(), static_cast<size_t>(bytes));
    return;
  }
  const at::NoGradGuard no_grad;
  target.copy_(value);
}

SlabPiece SlabLayout::add(const at::Tensor& value) {
  SlabPiece piece;
  piece.offset = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
  piece.bytes = static_cast<int64_t>(value.nbytes());
  piece.sizes = value.sizes().vec();
  if (value.is_non_overlapping_and_dense()) {
    piece.strides = value.strides().vec();
  } else {
    const auto strides = c10::contiguous_strides(value.sizes());
    piece.strides.assign(strides.begin(), strides.end());
  }
  piece.dtype = value.scalar_type();
  bytes_ = piece.offset + piece.bytes;
  return piece;
}

}  // namespace atelier::memory
