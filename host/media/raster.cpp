#include <algorithm>
#include <array>

#include "atelier/error.h"

#include "host/media/codec.h"

namespace atelier::media {
namespace {

// x / 255 of a product of two bytes, rounded.
uint8_t divide_by_255(unsigned product) {
  const unsigned t = product + 128;
  return static_cast<uint8_t>(((t >> 8) + t) >> 8);
}

// Where the pixel (x, y) of the upright image stands in the stored one of this size.
std::array<int, 2> stored_place(int orientation, int x, int y, int width, int height) {
  switch (orientation) {
    case 2:
      return {width - 1 - x, y};
    case 3:
      return {width - 1 - x, height - 1 - y};
    case 4:
      return {x, height - 1 - y};
    case 5:
      return {y, x};
    case 6:
      return {y, height - 1 - x};
    case 7:
      return {width - 1 - y, height - 1 - x};
    case 8:
      return {width - 1 - y, x};
    default:
      return {x, y};
  }
}

}  // namespace

Image to_rgb(const Raster& raster, bool over_white) {
  Image image(raster.info.width, raster.info.height);
  const size_t count = image.rgb.size() / 3;
  const uint8_t* in = raster.data.data();
  uint8_t* out = image.rgb.data();
  switch (raster.layout) {
    case Layout::kRgb:
      std::copy_n(in, 3 * count, out);
      break;
    case Layout::kRgba:
      for (size_t i = 0; i < count; ++i, in += 4, out += 3) {
        const unsigned alpha = over_white ? in[3] : 255;
        for (int c = 0; c < 3; ++c) out[c] = divide_by_255(in[c] * alpha + 255 * (255 - alpha));
      }
      break;
    case Layout::kInvertedCmyk:
      // Inverted values are light: the product of ink's light and black's light.
      for (size_t i = 0; i < count; ++i, in += 4, out += 3) {
        const int light = in[3];
        for (int c = 0; c < 3; ++c) {
          out[c] = static_cast<uint8_t>(
              std::max(0, light - divide_by_255(static_cast<unsigned>(255 - in[c]) * light)));
        }
      }
      break;
  }
  return image;
}

Image upright(Image stored, int orientation) {
  if (orientation == 1) return stored;
  const bool turns = orientation >= 5;
  Image image(turns ? stored.height : stored.width, turns ? stored.width : stored.height);
  for (int y = 0; y < image.height; ++y) {
    uint8_t* out = image.row(y);
    for (int x = 0; x < image.width; ++x, out += 3) {
      const auto [from_x, from_y] = stored_place(orientation, x, y, stored.width, stored.height);
      std::copy_n(stored.row(from_y) + 3 * from_x, 3, out);
    }
  }
  return image;
}

void check_numbers(std::span<const int64_t> frames, const ClipInfo& info,
                   const std::string& place) {
  int64_t before = 0;
  for (const int64_t number : frames) {
    if (number < before || number >= info.frames())
      throw Error(
          ErrorCode::kInvalidArgument,
          place + ": frame " + std::to_string(number) +
              (number < before ? " is asked for behind frame " + std::to_string(before)
                               : " is asked for, the clip has " + std::to_string(info.frames())),
          "ask for frames in ascending order");
    before = number;
  }
}

}  // namespace atelier::media
