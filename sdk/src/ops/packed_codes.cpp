#include "ops/packed_codes.h"

#include <bit>

#include <ATen/ATen.h>

namespace atelier::ops {

constinit KernelTable<PackedCodesKernels> packed_codes_kernels("packed_codes");

namespace {

constexpr int64_t kLeastBlock = 8;  // values that a lane makes at once

bool is_known(const PackedCodes& codes) {
  if (codes.packing <= Packing::kQ6_K) return true;
  const bool is_4_bit = codes.packing == Packing::kNf4 || codes.packing == Packing::kFp4;
  return is_4_bit && codes.block >= kLeastBlock &&
         std::has_single_bit(static_cast<uint64_t>(codes.block));
}

bool begins_evenly(const at::Tensor& codes) {
  return reinterpret_cast<uintptr_t>(codes.const_data_ptr()) % 2 == 0;
}

}  // namespace

bool has_kernel_for(const PackedCodes& codes, at::ScalarType dtype) {
  return packed_codes_kernels.in_use(codes.codes) != nullptr && dtype != at::kDouble &&
         is_known(codes) && codes.codes.is_contiguous() && begins_evenly(codes.codes);
}

void draw_packed_codes(const PackedCodes& codes, at::Tensor& out) {
  packed_codes_kernels.of(out)->draw(codes, out);
}

}  // namespace atelier::ops
