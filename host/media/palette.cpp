#include "host/media/palette.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace atelier::media {
namespace {

constexpr size_t kMostColors = 256;
constexpr int kBits = 5;  // of each channel, by which pixels are gathered
constexpr int kRounds = 3;

// The pixels whose upper bits are alike.
struct Bin {
  double count = 0;
  std::array<double, 3> sum = {};
  size_t place = 0;  // in the table of all bins
  size_t color = 0;  // of the palette

  double mean(int channel) const { return sum[channel] / count; }
};

size_t bin_of(const uint8_t* rgb) {
  constexpr int kDropped = 8 - kBits;
  return static_cast<size_t>(rgb[0] >> kDropped) << 2 * kBits |
         static_cast<size_t>(rgb[1] >> kDropped) << kBits | static_cast<size_t>(rgb[2] >> kDropped);
}

std::vector<Bin> bins_of(const Image& image) {
  std::vector<Bin> all(size_t{1} << 3 * kBits);
  for (size_t i = 0; i < image.rgb.size(); i += 3) {
    Bin& bin = all[bin_of(&image.rgb[i])];
    ++bin.count;
    for (size_t c = 0; c < 3; ++c) bin.sum[c] += image.rgb[i + c];
  }
  std::vector<Bin> used;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].count == 0) continue;
    used.push_back(all[i]);
    used.back().place = i;
  }
  return used;
}

// Bins that share a colour, until it is shared by fewer.
class Box {
 public:
  explicit Box(std::span<Bin> bins) : bins_(bins) {
    std::array<double, 3> squares = {};
    for (const Bin& bin : bins) {
      count_ += bin.count;
      for (int c = 0; c < 3; ++c) {
        sum_[c] += bin.sum[c];
        squares[c] += bin.sum[c] * bin.mean(c);
      }
    }
    std::array<double, 3> errors = {};
    for (int c = 0; c < 3; ++c) errors[c] = squares[c] - sum_[c] * sum_[c] / count_;
    axis_ = static_cast<int>(std::ranges::max_element(errors) - errors.begin());
    error_ = bins.size() < 2 ? -1 : errors[0] + errors[1] + errors[2];
  }

  double error() const { return error_; }  // squared, of its pixels; -1 where it cannot be cut
  std::array<double, 3> mean() const {
    return {sum_[0] / count_, sum_[1] / count_, sum_[2] / count_};
  }

  // Cuts across the channel that varies most, where that leaves the smallest error in it.
  std::pair<Box, Box> cut() const {
    std::ranges::sort(bins_, {},
                      [this](const Bin& bin) { return std::pair(bin.mean(axis_), bin.place); });
    double count = 0, sum = 0, best = -1;
    size_t at = 1;
    for (size_t i = 1; i < bins_.size(); ++i) {
      count += bins_[i - 1].count;
      sum += bins_[i - 1].sum[axis_];
      const double rest = sum_[axis_] - sum;
      const double gain = sum * sum / count + rest * rest / (count_ - count);
      if (gain > best) best = gain, at = i;
    }
    return {Box(bins_.first(at)), Box(bins_.subspan(at))};
  }

 private:
  std::span<Bin> bins_;
  double count_ = 0, error_ = 0;
  std::array<double, 3> sum_ = {};
  int axis_ = 0;
};

using Colors = std::vector<std::array<double, 3>>;

Colors cut_into_colors(std::vector<Bin>& bins) {
  std::vector<Box> boxes = {Box(bins)};
  while (boxes.size() < kMostColors) {
    const auto worst = std::ranges::max_element(boxes, {}, &Box::error);
    if (worst->error() < 0) break;
    auto [low, high] = worst->cut();
    *worst = low;
    boxes.push_back(high);
  }
  Colors colors;
  for (const Box& box : boxes) colors.push_back(box.mean());
  return colors;
}

void find_nearest(std::vector<Bin>& bins, const Colors& colors) {
  for (Bin& bin : bins) {
    const double red = bin.mean(0), green = bin.mean(1), blue = bin.mean(2);
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < colors.size(); ++i) {
      const double r = colors[i][0] - red, g = colors[i][1] - green, b = colors[i][2] - blue;
      const double distance = r * r + g * g + b * b;
      if (distance < least) least = distance, bin.color = i;
    }
  }
}

// Moves each colour to the middle of the pixels that have it.
void recenter(const std::vector<Bin>& bins, Colors& colors) {
  std::vector<Bin> sums(colors.size());
  for (const Bin& bin : bins) {
    Bin& sum = sums[bin.color];
    sum.count += bin.count;
    for (size_t c = 0; c < 3; ++c) sum.sum[c] += bin.sum[c];
  }
  for (size_t i = 0; i < colors.size(); ++i) {
    if (sums[i].count > 0) colors[i] = {sums[i].mean(0), sums[i].mean(1), sums[i].mean(2)};
  }
}

}  // namespace

IndexedImage to_indexed(const Image& image) {
  std::vector<Bin> bins = bins_of(image);
  Colors colors = cut_into_colors(bins);
  for (int round = 0; round < kRounds; ++round) {
    find_nearest(bins, colors);
    recenter(bins, colors);
  }
  IndexedImage indexed;
  for (const auto& color : colors) {
    auto& rounded = indexed.colors.emplace_back();
    for (size_t c = 0; c < 3; ++c) rounded[c] = static_cast<uint8_t>(std::lround(color[c]));
  }
  std::vector<uint8_t> color_of_bin(size_t{1} << 3 * kBits);
  for (const Bin& bin : bins) color_of_bin[bin.place] = static_cast<uint8_t>(bin.color);
  indexed.indices.resize(image.rgb.size() / 3);
  for (size_t i = 0; i < indexed.indices.size(); ++i)
    indexed.indices[i] = color_of_bin[bin_of(&image.rgb[3 * i])];
  return indexed;
}

}  // namespace atelier::media
