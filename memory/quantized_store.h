// Weights that rest as 8-bit codes with a scale a row, and are dequantised when they are drawn.
#pragma once

#include <cstdint>

#include "atelier/host/weight_state.h"

namespace atelier::memory {

enum class QuantizedKind { kFp8, kInt8 };  // float8_e4m3fn; int8

// A matrix whose row r is codes[r] * scales[r].
struct Quantized {
  at::Tensor codes;   // [rows, columns], float8_e4m3fn or int8
  at::Tensor scales;  // [rows], float32, on the same device

  int64_t bytes() const;
};

// Scales each row so that its largest value is the largest code, 448 or 127, and rounds to the
// nearest code, of two equally near ones to the even one. Works on the weight's device in parts
// of a few MiB.
//
// weight: [rows, columns] of any floating dtype. Throws Error{kInvalidArgument} when it is no
// matrix, and Error{kNumerics} when it holds a value that is not finite.
Quantized quantize(const at::Tensor& weight, QuantizedKind kind);

// The product of code and scale in float32, rounded once to `dtype`: float32, bfloat16 or float16.
at::Tensor dequantize(const Quantized& quantized, at::ScalarType dtype);

// Draws a matrix anew each time, in `dtype` and on the device of the codes. Immutable and safe to
// use from several threads.
class QuantizedStore final : public WeightStore {
 public:
  // With `is_w8a8`, draw_codes() returns the codes, so that products are computed in 8 bits.
  QuantizedStore(Quantized value, at::ScalarType dtype, bool is_w8a8 = false);

  at::Tensor draw() const override;
  at::Tensor draw_rows(const at::Tensor& index) const override;
  std::optional<RowCodes> draw_codes() const override;

  std::vector<at::Tensor> parts() const override;  // codes and scales
  std::shared_ptr<const WeightStore> over(std::vector<at::Tensor> copies) const override;

  const Quantized& value() const { return value_; }
  at::ScalarType dtype() const { return dtype_; }
  bool is_w8a8() const { return is_w8a8_; }

 private:
  Quantized value_;
  at::ScalarType dtype_;
  bool is_w8a8_;
};

}  // namespace atelier::memory
