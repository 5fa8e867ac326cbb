#include "host/tune/coded_layer.h"

#include <memory>

#include <ATen/ATen.h>

#include "atelier/host/weight_state.h"
#include "atelier/ops/linear.h"

namespace atelier::tune {

WeightPtr coded_weight(const memory::Quantized& codes, at::ScalarType dtype, at::Device device,
                       bool is_w8a8) {
  auto weight = std::make_shared<Weight>("weight", codes.codes.sizes().vec());
  weight->state().set_store(std::make_shared<memory::QuantizedStore>(
      memory::Quantized{codes.codes.to(device), codes.scales.to(device)}, dtype, is_w8a8));
  return weight;
}

namespace {

// What `product` makes of rows, in float32 for float64.
template <typename Product>
at::Tensor in_known_dtype(const at::Tensor& in, const Product& product) {
  const bool is_exact = in.scalar_type() == at::kDouble;
  const at::Tensor y = product(is_exact ? in.to(at::kFloat) : in);
  return is_exact ? y.to(at::kDouble) : y;
}

memory::Packed on_device(const memory::Packed& packed, at::Device device) {
  memory::Packed there = packed;
  for (at::Tensor& part : there.parts) part = part.to(device);
  return there;
}

at::Tensor product_with_store(const at::Tensor& x, const memory::Packed& packed) {
  auto weight = std::make_shared<Weight>("weight", packed.shape);
  weight->state().set_store(std::make_shared<memory::PackedStore>(packed, x.scalar_type()));
  return ops::linear(x, weight);
}

}  // namespace

at::Tensor coded_product(const at::Tensor& in, const memory::Quantized& codes, bool is_w8a8) {
  return in_known_dtype(in, [&](const at::Tensor& x) {
    return ops::linear(x, coded_weight(codes, x.scalar_type(), x.device(), is_w8a8));
  });
}

at::Tensor packed_product(const at::Tensor& in, const memory::Packed& packed) {
  return in_known_dtype(in, [&](const at::Tensor& x) {
    return product_with_store(x, on_device(packed, x.device()));
  });
}

at::Tensor packed_difference(const at::Tensor& in, const memory::Packed& packed) {
  return in_known_dtype(in, [&](const at::Tensor& x) {
    const memory::Packed there = on_device(packed, x.device());
    auto weight = std::make_shared<Weight>("weight", there.shape);
    weight->set(memory::unpack_composed(there, x.scalar_type()));
    return product_with_store(x, there) - ops::linear(x, weight);
  });
}

}  // namespace atelier::tune
