// A still image in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace atelier::media {

// 8-bit sRGB, three bytes a pixel, rows from top to bottom without padding.
struct Image {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> rgb;

  Image() = default;
  Image(int width, int height)
      : width(width), height(height), rgb(static_cast<size_t>(width) * height * 3) {}

  size_t row_bytes() const { return static_cast<size_t>(width) * 3; }
  uint8_t* row(int y) { return rgb.data() + row_bytes() * y; }
  const uint8_t* row(int y) const { return rgb.data() + row_bytes() * y; }
};

}  // namespace atelier::media
