#include "host/optim/blockwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

namespace atelier::optim {
namespace {

constexpr int kCodes = 256;

// Seven decades below 1, each with twice as many equal parts as the one below it; the values are
// the middles of the parts. With them 0 and 1.
std::array<float, kCodes> make_map(bool is_signed) {
  std::vector<float> values = {0.0f, 1.0f};
  for (int decade = 0; decade < 7; ++decade) {
    const int parts = (is_signed ? 1 : 2) << decade;
    const double scale = std::pow(10.0, decade - 6);
    for (int i = 0; i < parts; ++i) {
      const auto value = static_cast<float>(scale * (0.1 + 0.9 * (i + 0.5) / parts));
      values.push_back(value);
      if (is_signed) values.push_back(-value);
    }
  }
  std::sort(values.begin(), values.end());
  std::array<float, kCodes> map;
  std::copy(values.begin(), values.end(), map.begin());
  return map;
}

// The map and, for the upper 16 bits of a float, the code of the least value that begins with them.
// No two borders between codes lie within such a range.
struct Codebook {
  explicit Codebook(bool is_signed) : map(make_map(is_signed)) {
    for (int i = 0; i + 1 < kCodes; ++i) borders[i] = (map[i] + map[i + 1]) / 2;
    borders[kCodes - 1] = INFINITY;
    for (uint32_t upper = 0; upper < first_code.size(); ++upper) {
      const bool is_negative = upper >> 15;
      const float least = std::bit_cast<float>(upper << 16 | (is_negative ? 0xffffu : 0u));
      const auto border = std::lower_bound(borders.begin(), borders.end() - 1, least);
      first_code[upper] = static_cast<uint8_t>(border - borders.begin());
    }
  }

  // `value` in [-1, 1].
  uint8_t code(float value) const {
    const uint8_t first = first_code[std::bit_cast<uint32_t>(value) >> 16];
    return first + static_cast<uint8_t>(value > borders[first]);
  }

  std::array<float, kCodes> map;
  std::array<float, kCodes> borders;
  std::array<uint8_t, 1 << 16> first_code;
};

const Codebook& codebook(bool is_signed) {
  static const Codebook with_sign(true);
  static const Codebook without(false);
  return is_signed ? with_sign : without;
}

// A codebook in memory of a device.
struct DeviceCodebook {
  at::Tensor map, borders;  // float32 [256]; the last border is infinite
  at::Tensor first_code;    // uint8 [65536]
};

// Copied to a device once: copying waits for it.
const DeviceCodebook& device_codebook(bool is_signed, at::Device device) {
  using Key = std::tuple<bool, c10::DeviceType, c10::DeviceIndex>;
  static std::mutex mutex;
  static auto& books = *new std::map<Key, DeviceCodebook>;  // not destroyed after its device
  const std::lock_guard lock(mutex);
  const auto [book, is_new] = books.try_emplace({is_signed, device.type(), device.index()});
  if (is_new) {
    const Codebook& host = codebook(is_signed);
    book->second.map = at::tensor(at::ArrayRef<float>(host.map)).to(device);
    book->second.borders = at::tensor(at::ArrayRef<float>(host.borders)).to(device);
    book->second.first_code = at::tensor(at::ArrayRef<uint8_t>(host.first_code)).to(device);
  }
  return book->second;
}

void quantize_block(const float* value, int64_t size, const Codebook& book, uint8_t* codes,
                    float* absmax) {
  float largest = 0.0f;
  for (int64_t i = 0; i < size; ++i) largest = std::max(largest, std::fabs(value[i]));
  *absmax = largest;
  const float divisor = largest > 0.0f ? largest : 1.0f;
  for (int64_t i = 0; i < size; ++i) codes[i] = book.code(value[i] / divisor);
}

}  // namespace

at::Tensor dequantize(const Blockwise& quantized) {
  if (!quantized.codes.is_cpu()) return dequantize_composed(quantized);
  at::Tensor result = at::empty(quantized.codes.sizes(), at::kFloat);
  const Codebook& book = codebook(quantized.is_signed);
  const uint8_t* codes = quantized.codes.const_data_ptr<uint8_t>();
  const float* absmax = quantized.absmax.const_data_ptr<float>();
  auto* values = result.mutable_data_ptr<float>();
  const int64_t size = result.numel();
  at::parallel_for(0, quantized.absmax.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * kQuantizedBlock; i < std::min(end * kQuantizedBlock, size); ++i) {
      values[i] = book.map[codes[i]] * absmax[i / kQuantizedBlock];
    }
  });
  return result;
}

void quantize(const at::Tensor& value, const at::Tensor& keeps, Blockwise& target) {
  if (!value.is_cpu()) return quantize_composed(value, keeps, target);
  if (*keeps.const_data_ptr<bool>()) return;
  const Codebook& book = codebook(target.is_signed);
  const float* values = value.const_data_ptr<float>();
  auto* codes = target.codes.mutable_data_ptr<uint8_t>();
  auto* absmax = target.absmax.mutable_data_ptr<float>();
  const int64_t size = value.numel();
  at::parallel_for(0, target.absmax.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kQuantizedBlock;
      quantize_block(values + first, std::min(kQuantizedBlock, size - first), book, codes + first,
                     absmax + block);
    }
  });
}

ops::MomentCodes moment_codes(const Blockwise& quantized) {
  const DeviceCodebook& book = device_codebook(quantized.is_signed, quantized.codes.device());
  return {quantized.codes, quantized.absmax, book.map, book.borders, book.first_code};
}

at::Tensor dequantize_composed(const Blockwise& quantized) {
  const at::Tensor& map = device_codebook(quantized.is_signed, quantized.codes.device()).map;
  const int64_t size = quantized.codes.numel();
  const at::Tensor values = map.index_select(0, quantized.codes.flatten().to(at::kInt));
  const at::Tensor scales =
      quantized.absmax.unsqueeze(1).expand({-1, kQuantizedBlock}).flatten().narrow(0, 0, size);
  return values.mul(scales).view(quantized.codes.sizes());
}

void quantize_composed(const at::Tensor& value, const at::Tensor& keeps, Blockwise& target) {
  const int64_t size = value.numel();
  const int64_t blocks = target.absmax.numel();
  at::Tensor padded = value.flatten();
  if (size != blocks * kQuantizedBlock) {
    padded = at::constant_pad_nd(padded, {0, blocks * kQuantizedBlock - size});
  }
  padded = padded.view({blocks, kQuantizedBlock});
  const at::Tensor absmax = padded.abs().amax(1);
  const at::Tensor divisor = absmax.masked_fill(absmax == 0, 1.0).unsqueeze(1);
  const at::Tensor borders =
      device_codebook(target.is_signed, value.device()).borders.narrow(0, 0, kCodes - 1);
  const at::Tensor codes = at::bucketize(padded.div(divisor), borders, /*out_int32=*/true)
                               .to(at::kByte)
                               .flatten()
                               .narrow(0, 0, size)
                               .view(target.codes.sizes());
  at::where_out(target.codes, keeps, target.codes, codes);
  at::where_out(target.absmax, keeps, target.absmax, absmax);
}

}  // namespace atelier::optim
