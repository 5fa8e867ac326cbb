// What a LoRA file adds to one published weight, in the form that the file has it in.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier::lora {

// Immutable once it is made. Tensors have any floating dtype and lie on one device.
struct Difference {
  // A matrix, or the product of two where there is a `right`.
  struct Matrix {
    at::Tensor left, right;
    at::Tensor value() const;  // float32
  };
  // How `first` and `second` come together: `second` is not there, or multiplies each element
  // (LoHa), or is the right side of a Kronecker product (LoKr).
  enum class Form { kOne, kHadamard, kKronecker };

  Form form = Form::kOne;
  Matrix first = {}, second = {};
  double scale = 1.0;
  std::vector<int64_t> shape = {};  // of the published weight
  // DoRA: length of every row [out, 1] or of every column [1, in] of the sum of weight and
  // difference; otherwise undefined.
  at::Tensor magnitude = {};

  // What is added at strength 1, without DoRA: float32, of `shape`.
  at::Tensor value() const;
  int64_t bytes() const;
  Difference to(at::Device device) const;
};

}  // namespace atelier::lora
