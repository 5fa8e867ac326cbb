// Layers whose weights are codes, for proofs.
#pragma once

#include "memory/packed.h"
#include "memory/quantized_store.h"

namespace atelier::tune {

// A layer with the weight of codes of 8 bits, in `dtype`; with is_w8a8 the rows become codes, too.
WeightPtr coded_weight(const memory::Quantized& codes, at::ScalarType dtype, at::Device device,
                       bool is_w8a8);

// What such a layer makes of rows. What stands for float64 is the same in float32 on the CPU, whose
// codes have to be the device's.
at::Tensor coded_product(const at::Tensor& in, const memory::Quantized& codes, bool is_w8a8);

// Products with blocks of small codes, in the dtype of the rows and in float32 for float64, too.
at::Tensor packed_product(const at::Tensor& in, const memory::Packed& packed);
// What that is less the same product with values that LibTorch's operators draw: zeros.
at::Tensor packed_difference(const at::Tensor& in, const memory::Packed& packed);

}  // namespace atelier::tune
