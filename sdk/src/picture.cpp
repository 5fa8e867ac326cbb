// Shape letters: H and W height and width, C channels.
#include "atelier/picture.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "atelier/error.h"

namespace atelier {
namespace {

double box(double x) {
  return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
}

double bilinear(double x) {
  x = std::fabs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

double sinc(double x) {
  if (x == 0.0) return 1.0;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
}

struct FilterSpec {
  double (*weight)(double);
  double support;  // in input pixels, at scale 1
};

FilterSpec spec_of(ResizeFilter filter) {
  switch (filter) {
    case ResizeFilter::kBox:
      return {box, 0.5};
    case ResizeFilter::kBilinear:
      return {bilinear, 1.0};
    case ResizeFilter::kBicubic:
      return {bicubic, 2.0};
    case ResizeFilter::kLanczos:
      return {lanczos, 3.0};
  }
  throw Error(ErrorCode::kInternal, "resize: unknown filter");
}

// Weights are fixed-point numbers with this many bits after the point: 8 bits of a pixel and 2 for
// overshoot leave the rest of 32.
constexpr int kPrecisionBits = 32 - 8 - 2;
constexpr int kHalf = 1 << (kPrecisionBits - 1);

// For each output place, a window of input places and their weights.
struct Weights {
  struct Window {
    int first;
    int count;
  };
  std::vector<Window> windows;
  std::vector<int32_t> values;
  int stride;  // of values, per output place

  const int32_t* of(int place) const { return values.data() + static_cast<size_t>(stride) * place; }
};

Weights make_weights(int in_size, int out_size, const FilterSpec& filter) {
  const double scale = static_cast<double>(in_size) / out_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = filter.support * filter_scale;
  const double inverse = 1.0 / filter_scale;
  Weights weights;
  weights.stride = static_cast<int>(std::ceil(support)) * 2 + 1;
  weights.windows.resize(out_size);
  weights.values.assign(static_cast<size_t>(weights.stride) * out_size, 0);
  std::vector<double> window(weights.stride);
  for (int place = 0; place < out_size; ++place) {
    const double center = (place + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - support + 0.5));
    const int last = std::min(in_size, static_cast<int>(center + support + 0.5));
    double sum = 0.0;
    for (int i = 0; i < last - first; ++i) {
      window[i] = filter.weight((i + first - center + 0.5) * inverse);
      sum += window[i];
    }
    for (int i = 0; i < last - first; ++i) {
      const double value = sum != 0.0 ? window[i] / sum : window[i];
      const double scaled = value * (1 << kPrecisionBits);
      weights.values[static_cast<size_t>(place) * weights.stride + i] =
          static_cast<int32_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
    }
    weights.windows[place] = {first, last - first};
  }
  return weights;
}

uint8_t to_byte(int sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
}

// in: [H, W, 3], contiguous.
at::Tensor resize_rows(const at::Tensor& in, int width, const Weights& weights) {
  const int64_t H = in.size(0), row_bytes = 3 * in.size(1);
  at::Tensor out = at::empty({H, width, 3}, in.options());
  const uint8_t* in_row = in.const_data_ptr<uint8_t>();
  uint8_t* to = out.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < H; ++y, in_row += row_bytes) {
    for (int x = 0; x < width; ++x, to += 3) {
      const auto [first, count] = weights.windows[x];
      const int32_t* weight = weights.of(x);
      const uint8_t* from = in_row + 3 * first;
      int red = kHalf, green = kHalf, blue = kHalf;
      for (int i = 0; i < count; ++i, from += 3) {
        red += from[0] * weight[i];
        green += from[1] * weight[i];
        blue += from[2] * weight[i];
      }
      to[0] = to_byte(red);
      to[1] = to_byte(green);
      to[2] = to_byte(blue);
    }
  }
  return out;
}

at::Tensor resize_columns(const at::Tensor& in, int height, const Weights& weights) {
  at::Tensor out = at::empty({height, in.size(1), 3}, in.options());
  const auto row_bytes = static_cast<size_t>(3 * in.size(1));
  const uint8_t* from = in.const_data_ptr<uint8_t>();
  uint8_t* to = out.mutable_data_ptr<uint8_t>();
  std::vector<int> sums(row_bytes);
  for (int y = 0; y < height; ++y, to += row_bytes) {
    const auto [first, count] = weights.windows[y];
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int i = 0; i < count; ++i) {
      const uint8_t* row = from + row_bytes * static_cast<size_t>(first + i);
      const int weight = weights.of(y)[i];
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += row[k] * weight;
    }
    std::transform(sums.begin(), sums.end(), to, to_byte);
  }
  return out;
}

std::string size_text(int64_t height, int64_t width) {
  return std::to_string(width) + "x" + std::to_string(height);
}

}  // namespace

at::Tensor resize_picture(const at::Tensor& bytes_HWC, int64_t height, int64_t width,
                          ResizeFilter filter) {
  if (bytes_HWC.is_meta()) return bytes_HWC.new_empty({height, width, 3});
  const at::Tensor picture = bytes_HWC.contiguous();
  const int in_height = static_cast<int>(picture.size(0)),
            in_width = static_cast<int>(picture.size(1));
  if (width < 1 || height < 1 || in_width < 1 || in_height < 1) {
    throw Error(ErrorCode::kInvalidArgument, "resize: cannot make " + size_text(height, width) +
                                                 " of " + size_text(in_height, in_width));
  }
  const FilterSpec spec = spec_of(filter);
  const bool changes_width = width != in_width, changes_height = height != in_height;
  const auto rows = [&](const at::Tensor& in) {
    const int to = static_cast<int>(width);
    return changes_width ? resize_rows(in, to, make_weights(in_width, to, spec)) : in;
  };
  const auto columns = [&](const at::Tensor& in) {
    const int to = static_cast<int>(height);
    return changes_height ? resize_columns(in, to, make_weights(in_height, to, spec)) : in;
  };
  // Pillow 13 resizes the height first where that leaves clearly less work.
  const int64_t rows_saved = in_height - height;
  const bool columns_first = rows_saved > 0 && rows_saved > 2 * (in_width - width);
  return columns_first ? rows(columns(picture)) : columns(rows(picture));
}

}  // namespace atelier
