#include "host/media/resize.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "atelier/error.h"

#include "host/report/sizes.h"

namespace atelier::media {
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

FilterSpec spec_of(Filter filter) {
  switch (filter) {
    case Filter::kBox:
      return {box, 0.5};
    case Filter::kBilinear:
      return {bilinear, 1.0};
    case Filter::kBicubic:
      return {bicubic, 2.0};
    case Filter::kLanczos:
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

Image resize_rows(const Image& in, int width, const Weights& weights) {
  Image out(width, in.height);
  for (int y = 0; y < in.height; ++y) {
    uint8_t* to = out.row(y);
    for (int x = 0; x < width; ++x, to += 3) {
      const auto [first, count] = weights.windows[x];
      const int32_t* weight = weights.of(x);
      const uint8_t* from = in.row(y) + 3 * first;
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

Image resize_columns(const Image& in, int height, const Weights& weights) {
  Image out(in.width, height);
  std::vector<int> sums(in.row_bytes());
  for (int y = 0; y < height; ++y) {
    const auto [first, count] = weights.windows[y];
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int i = 0; i < count; ++i) {
      const uint8_t* from = in.row(first + i);
      const int weight = weights.of(y)[i];
      for (size_t k = 0; k < sums.size(); ++k) sums[k] += from[k] * weight;
    }
    std::transform(sums.begin(), sums.end(), out.row(y), to_byte);
  }
  return out;
}

// Python's round(): half to even, which is the default rounding mode.
int round_half_even(double x) {
  return static_cast<int>(std::nearbyint(x));
}

// Colors times opacity, rounded as Pillow's convert("RGBa").
Image premultiplied(const Image& image, const Image& alpha) {
  Image result = image;
  for (size_t i = 0; i < result.rgb.size(); ++i) {
    const unsigned t = static_cast<unsigned>(result.rgb[i]) * alpha.rgb[i] + 128;
    result.rgb[i] = static_cast<uint8_t>(((t >> 8) + t) >> 8);
  }
  return result;
}

}  // namespace

Image resize(const Image& image, int width, int height, Filter filter) {
  if (width < 1 || height < 1 || image.width < 1 || image.height < 1) {
    throw Error(ErrorCode::kInvalidArgument, "resize: cannot make " +
                                                 report::size_text(height, width) + " of " +
                                                 report::size_text(image.height, image.width));
  }
  const FilterSpec spec = spec_of(filter);
  const bool changes_width = width != image.width;
  const bool changes_height = height != image.height;
  if (!changes_width && !changes_height) return image;
  const auto rows = [&](const Image& in) {
    return resize_rows(in, width, make_weights(in.width, width, spec));
  };
  const auto columns = [&](const Image& in) {
    return resize_columns(in, height, make_weights(in.height, height, spec));
  };
  if (!changes_height) return rows(image);
  if (!changes_width) return columns(image);
  // Pillow 13 resizes the height first where that leaves clearly less work.
  const int rows_saved = image.height - height;
  const bool columns_first = rows_saved > 0 && rows_saved > 2 * (image.width - width);
  return columns_first ? rows(columns(image)) : columns(rows(image));
}

Image center_crop(const Image& image, int width, int height) {
  if (width < 1 || height < 1 || width > image.width || height > image.height) {
    throw Error(ErrorCode::kInvalidArgument, "center_crop: cannot cut " +
                                                 report::size_text(height, width) + " out of " +
                                                 report::size_text(image.height, image.width));
  }
  const int left = round_half_even((image.width - width) / 2.0);
  const int top = round_half_even((image.height - height) / 2.0);
  Image out(width, height);
  for (int y = 0; y < height; ++y) {
    std::copy_n(image.row(top + y) + 3 * left, out.row_bytes(), out.row(y));
  }
  return out;
}

std::pair<int, int> covering_size(const Image& image, int width, int height) {
  const double scale = std::max(static_cast<double>(width) / image.width,
                                static_cast<double>(height) / image.height);
  return {round_half_even(image.width * scale), round_half_even(image.height * scale)};
}

Image crop_and_resize(const Image& image, int width, int height) {
  if (image.width == width && image.height == height) return image;
  const auto [scaled_width, scaled_height] = covering_size(image, width, height);
  return center_crop(resize(image, scaled_width, scaled_height, Filter::kBilinear), width, height);
}

void resize_with_alpha(Image& image, Image& alpha, int width, int height, Filter filter) {
  if (image.width == width && image.height == height) return;
  image = resize(premultiplied(image, alpha), width, height, filter);
  alpha = resize(alpha, width, height, filter);
  for (size_t i = 0; i < image.rgb.size(); ++i) {
    const int opacity = alpha.rgb[i];
    if (opacity != 0)
      image.rgb[i] = static_cast<uint8_t>(std::min(255, 255 * image.rgb[i] / opacity));
  }
}

}  // namespace atelier::media
