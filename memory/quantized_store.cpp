#include "memory/quantized_store.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"
#include "atelier/host/row_codes.h"

namespace atelier::memory {

namespace {

// Elements that are float32 at once. On the CPU few enough to fit its cache, and to leave no gaps
// between the codes that stay.
constexpr int64_t kChunkElements = int64_t{1} << 16, kDeviceChunkElements = int64_t{1} << 24;
constexpr int64_t kElementsPerTask = 32768;

constexpr at::ScalarType code_type(QuantizedKind kind) {
  return kind == QuantizedKind::kFp8 ? at::kFloat8_e4m3fn : at::kChar;
}

constexpr double largest_code(QuantizedKind kind) {
  return kind == QuantizedKind::kFp8 ? 448.0 : 127.0;
}

using CodeValues = std::array<float, 256>;

// The value of each code; the index is the code's bits.
const CodeValues& code_values(at::ScalarType type) {
  const auto values_of = [](at::ScalarType codes) {
    const at::Tensor values = at::arange(256, at::kByte).view(codes).to(at::kFloat);
    CodeValues table;
    std::memcpy(table.data(), values.data_ptr(), sizeof(table));
    return table;
  };
  static const CodeValues fp8 = values_of(at::kFloat8_e4m3fn), int8 = values_of(at::kChar);
  return type == at::kChar ? int8 : fp8;
}

// Every row has a table of its 256 values: a row is longer than that, and looking up is faster than
// ATen's conversion.
template <typename T>
void look_up_rows(const Quantized& from, at::Tensor& to) {
  const CodeValues& values = code_values(from.codes.scalar_type());
  const auto* codes = static_cast<const uint8_t*>(from.codes.const_data_ptr());
  const auto* scales = from.scales.const_data_ptr<float>();
  auto* out = static_cast<T*>(to.mutable_data_ptr());
  const int64_t columns = to.size(1);
  const int64_t rows_per_task =
      std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, columns));
  at::parallel_for(0, to.size(0), rows_per_task, [&](int64_t begin, int64_t end) {
    std::array<T, 256> table;
    for (int64_t row = begin; row < end; ++row) {
      for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<T>(values[i] * scales[row]);
      const uint8_t* in = codes + row * columns;
      T* row_out = out + row * columns;
      for (int64_t column = 0; column < columns; ++column) row_out[column] = table[in[column]];
    }
  });
}

}  // namespace

int64_t Quantized::bytes() const {
  return static_cast<int64_t>(codes.nbytes() + scales.nbytes());
}

Quantized quantize(const at::Tensor& weight, QuantizedKind kind) {
  if (weight.dim() != 2)
    throw Error(ErrorCode::kInvalidArgument, "only matrices are stored in 8 bits");
  const at::NoGradGuard no_grad;
  const int64_t rows = weight.size(0), columns = weight.size(1);
  const double limit = largest_code(kind);
  Quantized result = {
      at::empty(weight.sizes(), at::TensorOptions(code_type(kind)).device(weight.device())),
      at::ones({rows}, at::TensorOptions(at::kFloat).device(weight.device()))};
  if (weight.numel() == 0) return result;
  const int64_t chunk = weight.device().is_cpu() ? kChunkElements : kDeviceChunkElements;
  const int64_t step = std::max<int64_t>(1, chunk / columns);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor values = weight.narrow(0, begin, count).to(at::kFloat);
    const at::Tensor scales = ops::row_scales(values, limit);
    at::Tensor codes = at::div(values, scales.unsqueeze(1));
    if (kind == QuantizedKind::kInt8) codes.round_();
    result.scales.narrow(0, begin, count).copy_(scales);
    result.codes.narrow(0, begin, count).copy_(codes.clamp_(-limit, limit));
  }
  if (!at::isfinite(result.scales).all().item<bool>())
    throw Error(ErrorCode::kNumerics, "a value is not finite and cannot be stored in 8 bits",
                "check the file, or leave its component in --dtype");
  return result;
}

at::Tensor dequantize(const Quantized& quantized, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  if (!quantized.codes.device().is_cpu())
    return ops::dequantize_rows({quantized.codes, quantized.scales}, dtype);
  at::Tensor out = at::empty(quantized.codes.sizes(), at::TensorOptions(dtype));
  if (dtype == at::kBFloat16) {
    look_up_rows<at::BFloat16>(quantized, out);
  } else if (dtype == at::kHalf) {
    look_up_rows<at::Half>(quantized, out);
  } else if (dtype == at::kFloat) {
    look_up_rows<float>(quantized, out);
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("weights of 8 bits are not drawn as ") + c10::toString(dtype));
  }
  return out;
}

QuantizedStore::QuantizedStore(Quantized value, at::ScalarType dtype, bool is_w8a8)
    : value_(std::move(value)), dtype_(dtype), is_w8a8_(is_w8a8) {
  value_.codes = value_.codes.contiguous();
  value_.scales = value_.scales.contiguous();
}

std::vector<at::Tensor> QuantizedStore::parts() const {
  return {value_.codes, value_.scales};
}

std::shared_ptr<const WeightStore> QuantizedStore::over(std::vector<at::Tensor> copies) const {
  auto result = std::make_shared<QuantizedStore>(*this);
  result->value_ = {std::move(copies.at(0)), std::move(copies.at(1))};
  return result;
}

at::Tensor QuantizedStore::draw() const {
  return dequantize(value_, dtype_);
}

std::optional<RowCodes> QuantizedStore::draw_codes() const {
  if (!is_w8a8_) return std::nullopt;
  return RowCodes{value_.codes, value_.scales};
}

at::Tensor QuantizedStore::draw_rows(const at::Tensor& index) const {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = index.reshape({-1}).to(value_.codes.device());
  const at::Tensor codes = value_.codes.view(at::kByte).index_select(0, rows);
  return dequantize({codes.view(value_.codes.scalar_type()), value_.scales.index_select(0, rows)},
                    dtype_);
}

}  // namespace atelier::memory
