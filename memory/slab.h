// Tensors that lie behind one another in one piece of memory, so that one copy moves them all.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier::memory {

inline constexpr int64_t kSlabAlignment = 256;  // bytes

// Where a tensor lies in a slab.
struct SlabSlice {
  int64_t offset = 0, bytes = 0;
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype = at::kFloat;

  // The tensor in `slab`, uint8. Keeps the slab's memory and `held` as long as it is there. Its
  // storage is its own, so that nobody takes it for one that lasts.
  at::Tensor in(const at::Tensor& slab, std::shared_ptr<void> held = nullptr) const;
  // Copies `value`, which the slice was made for, into `slab` on the host.
  void fill(const at::Tensor& slab, const at::Tensor& value) const;
  // Fills the part of a slab on the host that begins at byte `begin`: copies what of
  // `value`, which is on the host, lies there, and reads nothing else of it.
  void fill_part(const at::Tensor& part, int64_t begin, const at::Tensor& value) const;
};

class SlabLayout {
 public:
  // Reserves space for `value`, aligned to `alignment` bytes. Strides are kept where it has no
  // gaps.
  SlabSlice add(const at::Tensor& value, int64_t alignment = kSlabAlignment);

  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

}  // namespace atelier::memory
