#include "host/lora/difference.h"

#include <ATen/ATen.h>

namespace atelier::lora {

at::Tensor Difference::Matrix::value() const {
  const at::Tensor whole = left.to(at::kFloat);
  return right.defined() ? at::mm(whole, right.to(at::kFloat)) : whole;
}

at::Tensor Difference::value() const {
  at::Tensor sum = first.value();
  if (form == Form::kHadamard) sum = sum * second.value();
  if (form == Form::kKronecker) sum = at::kron(sum, second.value());
  if (scale != 1) sum = sum.mul(scale);
  return sum.reshape(shape);
}

int64_t Difference::bytes() const {
  size_t sum = 0;
  for (const at::Tensor& tensor : {first.left, first.right, second.left, second.right, magnitude}) {
    if (tensor.defined()) sum += tensor.nbytes();
  }
  return static_cast<int64_t>(sum);
}

Difference Difference::to(at::Device device) const {
  Difference moved = *this;
  for (at::Tensor* tensor : {&moved.first.left, &moved.first.right, &moved.second.left,
                             &moved.second.right, &moved.magnitude}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  return moved;
}

}  // namespace atelier::lora
