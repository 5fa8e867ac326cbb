#include <bit>

#include "ops/cuda/row_call.h"
#include "ops/packed_codes.h"

namespace atelier::ops::cuda {

// Defined in packed_codes.cu.
extern const RowKernel draw_packed_rows;

namespace {

using at::Tensor;

void draw_packed(const PackedCodes& codes, Tensor& out) {
  const Segments one_row = one_sample(1);
  RowCall call(draw_packed_rows, out, one_row, out.numel(), /*adds_up_rows=*/false, 0);
  PackedArguments& packed = call.arguments.packed;
  packed.codes = codes.codes.const_data_ptr<uint8_t>();
  packed.packing = codes.packing;
  const Tensor values = codes.values.defined() ? codes.values.contiguous() : Tensor();
  const Tensor scales = codes.scales.defined() ? codes.scales.contiguous() : Tensor();
  if (values.defined()) {
    packed.values = values.const_data_ptr<float>();
    packed.scales = scales.const_data_ptr<float>();
    packed.block_bits = std::countr_zero(static_cast<uint64_t>(codes.block));
  }
  void* data = out.mutable_data_ptr();
  call.arguments.out = {data, out.numel(), is_aligned(data, 0, out.element_size())};
  call.run();
}

const DeviceKernels packed_codes(row_device(), packed_codes_kernels,
                                 {.draw = draw_packed, .limits = {}});

}  // namespace
}  // namespace atelier::ops::cuda
