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

at::Tensor coded_product(const at::Tensor& in, const memory::Quantized& codes, bool is_w8a8) {
  const bool is_exact = in.scalar_type() == at::kDouble;
  const at::Tensor x = is_exact ? in.to(at::kFloat) : in;
  const at::Tensor y = ops::linear(x, coded_weight(codes, x.scalar_type(), x.device(), is_w8a8));
  return is_exact ? y.to(at::kDouble) : y;
}

}  // namespace atelier::tune
