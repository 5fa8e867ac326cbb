#include "ops/eight_bit.h"

#include <algorithm>
#include <cfloat>
#include <map>
#include <mutex>
#include <utility>

#include <ATen/ATen.h>

#include "atelier/host/out_of_memory.h"
#include "atelier/host/row_codes.h"
#include "atelier/host/scaled_products.h"

#include "ops/row_codes.h"
#include "ops/shared_codes.h"

namespace atelier::ops {

using at::Tensor;

constinit KernelTable<RowCodesKernels> row_codes_kernels("row_codes");

namespace {

thread_local bool fast_sums = false;

// Elements that are float32 or int32 at once.
constexpr int64_t kChunkElements = int64_t{1} << 24;
// What products of a CUDA device ask of their sizes.
constexpr int64_t kSizeMultiple = 16, kLeastRows = 32;

double largest_code(at::ScalarType type) {
  return type == at::kChar ? 127.0 : 448.0;
}

}  // namespace

Tensor row_scales(const Tensor& values, double limit) {
  // A number would be turned into a factor by LibTorch on a GPU, which rounds otherwise.
  const Tensor divisor = at::full({1}, limit, values.options());
  return values.abs().amax(1).div_(divisor).clamp_min_(FLT_MIN);
}

namespace {

// values: float32 [n, k].
RowCodes quantize_composed(const Tensor& values, at::ScalarType type) {
  const double limit = largest_code(type);
  const Tensor scales = row_scales(values, limit);
  Tensor codes = at::div(values, scales.unsqueeze(1));
  if (type == at::kChar) codes.round_();
  return {codes.clamp_(-limit, limit).to(type), scales};
}

// Codes [rows, columns] with zeros behind them.
Tensor padded(const Tensor& codes, int64_t rows, int64_t columns) {
  if (codes.size(0) == rows && codes.size(1) == columns) return codes;
  Tensor result = at::zeros({rows, columns}, codes.options().dtype(at::kByte));
  result.narrow(0, 0, codes.size(0)).narrow(1, 0, codes.size(1)).copy_(codes.view(at::kByte));
  return result.view(codes.scalar_type());
}

int64_t rounded_up(int64_t size) {
  return (size + kSizeMultiple - 1) / kSizeMultiple * kSizeMultiple;
}

// What a device has of e4m3 products with scales of both factors' rows.
struct E4m3Products {
  bool are_there = false;
  bool take_bias = false;  // which is added before the result is rounded
};

// In results of `dtype`. A GPU keeps about 14 bits of their sums, which float32 is not asked for.
E4m3Products e4m3_products(at::Device device, at::ScalarType dtype) {
  if (!device.is_cuda() || dtype == at::kFloat) return {};
  static std::mutex mutex;
  static std::map<std::pair<int, at::ScalarType>, E4m3Products> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const std::pair<int, at::ScalarType> key{device.index(), dtype};
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const auto options = at::TensorOptions(device);
  const Tensor codes =
      at::zeros({kLeastRows, kLeastRows}, options.dtype(at::kByte)).view(at::kFloat8_e4m3fn);
  const RowCodes some = {codes, at::ones({kLeastRows}, options.dtype(at::kFloat))};
  const auto can = [&](const Tensor& bias) {
    Tensor out = at::empty({kLeastRows, kLeastRows}, options.dtype(dtype));
    try {
      scaled_product(some, some, bias, out);
    } catch (const c10::Error& error) {
      if (says_out_of_memory(error.what_without_backtrace())) throw;
      return false;
    }
    return true;
  };
  E4m3Products products = {.are_there = can({})};
  products.take_bias = products.are_there && can(at::zeros({kLeastRows}, options.dtype(dtype)));
  return known.emplace(key, products).first->second;
}

// a bᵀ of e4m3 codes, float32. bfloat16 holds every code, and a CUDA device multiplies it faster.
Tensor multiply_codes(const Tensor& a, const Tensor& b) {
  if (a.is_cuda()) return at::mm(a.to(at::kBFloat16), b.to(at::kBFloat16).t(), at::kFloat);
  return at::mm(a.to(at::kFloat), b.to(at::kFloat).t());
}

constexpr int64_t kLargestInt8 = 127;

// Whether LibTorch's int8 products are exact on the CPU. Without instructions that sum into 32
// bits, oneDNN sums pairs into 16, which hold no more than 32767: of large codes it makes something
// else.
bool sums_int8_exactly() {
  static const bool is_exact = [] {
    const Tensor codes = at::full({kLeastRows, kLeastRows}, kLargestInt8, at::kChar);
    const Tensor sums = at::_int_mm(codes, codes.t());
    return sums.eq(kLargestInt8 * kLargestInt8 * kLeastRows).all().item<bool>();
  }();
  return is_exact;
}

// a bᵀ of int8 codes, int32.
Tensor multiply_int8(const Tensor& a, const Tensor& b) {
  if (a.is_cuda() || sums_int8_exactly()) return at::_int_mm(a, b.t());
  constexpr int64_t kColumns =
      (1 << FLT_MANT_DIG) / (kLargestInt8 * kLargestInt8);  // exact at once
  Tensor sums = at::zeros({a.size(0), b.size(0)}, a.options().dtype(at::kInt));
  for (int64_t begin = 0; begin < a.size(1); begin += kColumns) {
    const int64_t count = std::min(kColumns, a.size(1) - begin);
    const Tensor left = a.narrow(1, begin, count).to(at::kFloat);
    const Tensor right = b.narrow(1, begin, count).to(at::kFloat);
    sums.add_(at::mm(left, right.t()).to(at::kInt));
  }
  return sums;
}

// Codes of all rows in one pass, where a kernel of our own makes them; products of the same rows
// share them. `folded`, [k], may be undefined.
std::optional<RowCodes> quantize_at_once(const Tensor& rows, const Tensor& folded,
                                         at::ScalarType type) {
  const RowCodesKernels* kernels = row_codes_kernels.in_use(rows, rows.size(1));
  if (kernels == nullptr || rows.stride(1) != 1) return std::nullopt;
  SharedCodes& shared = SharedCodes::of_thread();
  if (!folded.defined()) {
    if (const std::optional<RowCodes> codes = shared.find(rows, type)) return codes;
  }
  RowCodes codes = empty_codes(rows, type);
  kernels->quantize(rows, folded, codes);
  if (!folded.defined() && rows.is_contiguous() && shared.wanted(rows, /*is_for_one=*/false))
    shared.put(rows, codes, /*is_for_one=*/false);
  return codes;
}

// Puts `sums`, int32 or float32 [n, m], times the scales of both factors into `out`, and adds a
// bias.
void scale(const Tensor& sums, const RowCodes& a, const RowCodes& b, const Tensor& bias,
           Tensor& out) {
  const RowCodesKernels* kernels = row_codes_kernels.in_use(out);
  if (kernels != nullptr && sums.scalar_type() == at::kInt) {
    kernels->scale_sums(sums, a.scales, b.scales, bias, out);
    return;
  }
  out.copy_(sums.to(at::kFloat).mul_(a.scales.unsqueeze(1)).mul_(b.scales.unsqueeze(0)));
  if (bias.defined()) out.add_(bias);
}

// Puts a bᵀ of codes and scales, [n, m], into `out`, and adds a bias, which may be undefined.
void multiply(const RowCodes& a, const RowCodes& b, const Tensor& bias, Tensor out) {
  const at::ScalarType dtype = out.scalar_type();
  const int64_t n = a.codes.size(0), k = a.codes.size(1), m = b.codes.size(0);
  const bool is_int8 = a.codes.scalar_type() == at::kChar;
  Tensor left = a.codes, right = b.codes;
  if (left.is_cuda()) {
    left = padded(left, std::max(n, kLeastRows), rounded_up(k));
    right = padded(right, rounded_up(m), rounded_up(k));
  }
  const E4m3Products products = is_int8 ? E4m3Products() : e4m3_products(left.device(), dtype);
  if (products.are_there) {
    const bool is_padded = left.size(0) != n || right.size(0) != m;
    Tensor whole = is_padded ? at::empty({left.size(0), right.size(0)}, out.options()) : out;
    const auto widened = [](const Tensor& t, int64_t size) {
      return t.size(0) == size ? t : at::constant_pad_nd(t, {0, size - t.size(0)}, 1.0);
    };
    const bool takes_bias = products.take_bias && bias.defined();
    scaled_product({left, widened(a.scales, left.size(0))},
                   {right, widened(b.scales, right.size(0))},
                   takes_bias ? widened(bias, right.size(0)) : Tensor(), whole);
    if (is_padded) out.copy_(whole.narrow(0, 0, n).narrow(1, 0, m));
    if (bias.defined() && !takes_bias) out.add_(bias);
    return;
  }
  const Tensor sums = is_int8 ? multiply_int8(left, right) : multiply_codes(left, right);
  scale(sums.narrow(0, 0, n).narrow(1, 0, m), a, b, bias, out);
}

RowCodes part_of(const RowCodes& codes, int64_t begin, int64_t count) {
  return {codes.codes.narrow(0, begin, count), codes.scales.narrow(0, begin, count)};
}

// (rows * folded) rightᵀ + bias; `folded`, [k], and `bias` may be undefined.
Tensor multiply_rows(const Tensor& rows, const Tensor& folded, const RowCodes& right,
                     const Tensor& bias) {
  const int64_t n = rows.size(0), k = rows.size(1), m = right.codes.size(0);
  if (n == 0 || k == 0 || m == 0) {
    Tensor none = at::zeros({n, m}, rows.options());
    return bias.defined() ? none.add_(bias) : none;
  }
  const at::ScalarType type = right.codes.scalar_type();
  const std::optional<RowCodes> codes = quantize_at_once(rows, folded, type);
  Tensor result = at::empty({n, m}, rows.options());
  // Where codes are there and products go where they stay, nothing is float32 on the way; int8 has
  // its sums.
  const bool is_lean =
      codes && type != at::kChar && e4m3_products(rows.device(), rows.scalar_type()).are_there;
  const bool has_sums_alone = codes && type == at::kChar;
  const int64_t elements = has_sums_alone ? 4 * kChunkElements : kChunkElements;
  const int64_t step = is_lean ? n : std::max<int64_t>(kLeastRows, elements / std::max(k, m));
  for (int64_t begin = 0; begin < n; begin += step) {
    const int64_t count = std::min(step, n - begin);
    const Tensor part = result.narrow(0, begin, count);
    if (codes) {
      multiply(part_of(*codes, begin, count), right, bias, part);
      continue;
    }
    Tensor values = rows.narrow(0, begin, count).to(at::kFloat);
    if (folded.defined()) values = values * folded;
    multiply(quantize_composed(values, type), right, bias, part);
  }
  return result;
}

}  // namespace

FastSums::FastSums() : before_(std::exchange(fast_sums, true)) {}

FastSums::~FastSums() {
  fast_sums = before_;
}

bool FastSums::are_allowed() {
  return fast_sums;
}

void scaled_product(const RowCodes& a, const RowCodes& b, const Tensor& bias, Tensor& out) {
  at::_scaled_mm_out(out, a.codes, b.codes.t(), a.scales.unsqueeze(1), b.scales.unsqueeze(0),
                     bias.defined() ? std::optional(bias) : std::nullopt, /*scale_result=*/{},
                     out.scalar_type(),
                     /*use_fast_accum=*/FastSums::are_allowed());
}

Tensor eight_bit_product(const Tensor& rows, const RowCodes& weight, const Tensor& bias) {
  return multiply_rows(rows, {}, weight, bias);
}

Tensor eight_bit_gradient(const Tensor& grad, const RowCodes& weight) {
  Tensor turned = weight.codes.view(at::kByte).t();
  if (turned.is_cuda()) turned = turned.contiguous();
  const RowCodes right = {turned.view(weight.codes.scalar_type()),
                          at::ones({turned.size(0)}, weight.scales.options())};
  return multiply_rows(grad, weight.scales, right, {});
}

Tensor dequantize_rows(const RowCodes& codes, at::ScalarType dtype) {
  const RowCodesKernels* kernels = row_codes_kernels.in_use(codes.codes);
  if (kernels != nullptr && dtype != at::kDouble && codes.codes.is_contiguous() &&
      codes.scales.is_contiguous()) {
    Tensor out = at::empty(codes.codes.sizes(), codes.codes.options().dtype(dtype));
    kernels->draw(codes, out);
    return out;
  }
  // Every code is a value of `dtype`; the product is float32 and is rounded when it is written.
  return codes.codes.to(dtype).mul_(codes.scales.unsqueeze(1));
}

}  // namespace atelier::ops
