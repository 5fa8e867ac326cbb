// A layer whose weight is codes of 8 bits, for proofs.
#pragma once

#include "memory/quantized_store.h"

namespace atelier::tune {

// A layer with the weight of codes, in `dtype`; with is_w8a8 the rows become codes, too.
WeightPtr coded_weight(const memory::Quantized& codes, at::ScalarType dtype, at::Device device,
                       bool is_w8a8);

// What such a layer makes of rows. What stands for float64 is the same in float32 on the CPU, whose
// codes have to be the device's.
at::Tensor coded_product(const at::Tensor& in, const memory::Quantized& codes, bool is_w8a8);

}  // namespace atelier::tune
