#include "memory/four_bit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "atelier/error.h"

namespace atelier::memory {
namespace {

using at::Tensor;

constexpr std::array<float, 16> kNf4 = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
constexpr std::array<float, 16> kFp4 = {
    0.0f, 0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
    0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};

constexpr double kLeastScale = 1e-38;               // by which zeros are divided
constexpr int64_t kChunkValues = int64_t{1} << 22;  // that are float32 at once

// Between which values a code is the nearest, and the code of each place in order.
struct Steps {
  Tensor bounds, order;
};
Steps steps_of(Packing packing, at::Device device) {
  const Tensor values = four_bit_values(packing);
  const Tensor order = values.argsort();
  const Tensor sorted = values.index_select(0, order);
  const Tensor bounds = (sorted.narrow(0, 0, 15) + sorted.narrow(0, 1, 15)).div_(2.0);
  return {bounds.to(device), order.to(at::kByte).to(device)};
}

// The codes of `scaled`, flat in [-1, 1], two in a byte.
Tensor codes_of(const Tensor& scaled, const Steps& steps) {
  Tensor even = scaled;
  if (scaled.numel() % 2 != 0) even = at::constant_pad_nd(scaled, {0, 1});
  const Tensor places = at::bucketize(even, steps.bounds, /*out_int32=*/true);
  const Tensor codes = steps.order.index_select(0, places).view({-1, 2});
  return codes.select(1, 0).bitwise_left_shift(4).bitwise_or_(codes.select(1, 1));
}

// The values of scales' codes: a sign, an exponent of as many bits as it is small, a fraction.
Tensor dynamic_values() {
  constexpr int kExponents = 7;
  std::vector<float> values = {0.0f, 1.0f};
  for (int i = 0; i < kExponents; ++i) {
    const Tensor ends = at::linspace(0.1, 1.0, (1 << i) + 1, at::kFloat);
    const Tensor means = (ends.narrow(0, 0, 1 << i) + ends.narrow(0, 1, 1 << i)).div_(2.0);
    const double power = std::pow(10.0, i - (kExponents - 1));
    for (const double signed_power : {power, -power}) {
      const Tensor part = means * signed_power;
      values.insert(values.end(), part.const_data_ptr<float>(),
                    part.const_data_ptr<float>() + part.numel());
    }
  }
  std::ranges::sort(values);
  return at::tensor(values);
}

// The code of each of 65536 steps from -1 to 1.
constexpr int kSteps = 65'536;
std::vector<uint8_t> codes_of_steps(const Tensor& values) {
  const auto* sorted = values.const_data_ptr<float>();
  std::vector<uint8_t> codes(kSteps);
  int code = 0;
  for (int i = 0; i < kSteps; ++i) {
    const float value = -1.0f + 2.0f * static_cast<float>(i) / static_cast<float>(kSteps - 1);
    while (code < 255 && 0.5f * (sorted[code] + sorted[code + 1]) < value) ++code;
    codes[static_cast<size_t>(i)] = static_cast<uint8_t>(code);
  }
  return codes;
}

// Codes of `scales`, float32 and flat on the CPU, and what these are multiplied by, one for each
// kScaleBlock.
std::pair<Tensor, Tensor> quantize_scales(const Tensor& scales) {
  static const std::vector<uint8_t> kCodes = codes_of_steps(dynamic_values());
  const int64_t count = scales.numel(), blocks = (count + kScaleBlock - 1) / kScaleBlock;
  Tensor codes = at::empty({count}, at::kByte), largest = at::empty({blocks}, at::kFloat);
  const auto* in = scales.const_data_ptr<float>();
  auto* out = codes.mutable_data_ptr<uint8_t>();
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = block * kScaleBlock, end = std::min(begin + kScaleBlock, count);
    float most = 0;
    for (int64_t i = begin; i < end; ++i) most = std::max(most, std::fabs(in[i]));
    largest.mutable_data_ptr<float>()[block] = most;
    const float inverse = 1.0f / most;
    for (int64_t i = begin; i < end; ++i) {
      const float value = std::clamp(in[i] * inverse, -1.0f, 1.0f);
      // The sum is not rounded by itself.
      const float step = std::fma((value + 1.0f) * 0.5f, static_cast<float>(kSteps - 1), 0.5f);
      out[i] = most == 0.0f ? 0 : kCodes[static_cast<size_t>(step)];
    }
  }
  return {codes, largest};
}

bool has_whole_blocks(at::IntArrayRef shape) {
  return shape.size() == 2 && shape[1] % kFourBitBlock == 0;
}

// `flat` as rows where these are whole blocks.
Tensor as_rows(const Tensor& flat, at::IntArrayRef shape) {
  return flat.view({has_whole_blocks(shape) ? shape[0] : 1, -1});
}

}  // namespace

Tensor four_bit_values(Packing packing) {
  const std::array<float, 16>& values = packing == Packing::kNf4 ? kNf4 : kFp4;
  return at::tensor(at::ArrayRef<float>(values));
}

Packed quantize_4bit(const Tensor& weight, Packing packing) {
  const at::NoGradGuard no_grad;
  const Tensor flat = weight.reshape({-1});
  const int64_t count = flat.numel(), blocks = (count + kFourBitBlock - 1) / kFourBitBlock;
  const auto options = at::TensorOptions(weight.device());
  Tensor codes = at::empty({(count + 1) / 2}, options.dtype(at::kByte));
  Tensor scales = at::empty({blocks}, options.dtype(at::kFloat));
  const Steps steps = steps_of(packing, weight.device());
  const auto put = [&](int64_t begin, const Tensor& scaled, const Tensor& own) {
    codes.narrow(0, begin / 2, (scaled.numel() + 1) / 2).copy_(codes_of(scaled, steps));
    scales.narrow(0, begin / kFourBitBlock, own.numel()).copy_(own);
  };
  const int64_t whole = count / kFourBitBlock * kFourBitBlock;
  for (int64_t begin = 0; begin < whole; begin += kChunkValues) {
    const int64_t length = std::min(kChunkValues, whole - begin);
    const Tensor values = flat.narrow(0, begin, length).to(at::kFloat).view({-1, kFourBitBlock});
    const Tensor largest = values.abs().amax(1);
    const Tensor inverse = at::reciprocal(largest.clamp_min(kLeastScale)).unsqueeze(1);
    put(begin, (values * inverse).clamp_(-1.0, 1.0).view({-1}), largest);
  }
  if (whole < count) {
    const Tensor values = flat.narrow(0, whole, count - whole).to(at::kFloat);
    const Tensor largest = values.abs().amax().clamp_min(kLeastScale).view({1});
    put(whole, (values / largest).clamp_(-1.0, 1.0), largest);
  }
  if (!at::isfinite(scales).all().item<bool>())
    throw Error(ErrorCode::kNumerics, "a value is not finite and cannot be stored in 4 bits",
                "check the file, or leave its component in --dtype");
  const Tensor on_cpu = scales.to(at::kCPU);
  const Tensor offset = on_cpu.mean();
  const auto [scale_codes, scale_scales] = quantize_scales(on_cpu - offset);
  const auto device = weight.device();
  return {packing,
          weight.sizes().vec(),
          {as_rows(codes, weight.sizes()), four_bit_values(packing).to(device),
           as_rows(scale_codes.to(device), weight.sizes()), dynamic_values().to(device),
           scale_scales.to(device), offset.view({1}).to(device)},
          kFourBitBlock};
}

Packed outline_4bit(at::IntArrayRef shape, Packing packing) {
  const int64_t count = c10::multiply_integers(shape);
  const int64_t blocks = (count + kFourBitBlock - 1) / kFourBitBlock;
  const auto meta = [](at::IntArrayRef sizes, at::ScalarType type) {
    return at::empty(sizes, at::TensorOptions(type).device(at::kMeta));
  };
  return {packing,
          shape.vec(),
          {as_rows(meta({(count + 1) / 2}, at::kByte), shape), meta({16}, at::kFloat),
           as_rows(meta({blocks}, at::kByte), shape), meta({256}, at::kFloat),
           meta({(blocks + kScaleBlock - 1) / kScaleBlock}, at::kFloat), meta({1}, at::kFloat)},
          kFourBitBlock};
}

}  // namespace atelier::memory
