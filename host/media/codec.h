// What each format's reader gives to decode.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "host/media/clip.h"
#include "host/media/decode.h"

namespace atelier::media {

// Rows as they are stored: RGB, RGBA or, inverted as in JPEG files, CMYK.
enum class Layout { kRgb, kRgba, kInvertedCmyk };

struct Raster {
  ImageInfo info;  // width and height as stored, before orientation
  Layout layout = Layout::kRgb;
  std::vector<uint8_t> data;

  int bytes_per_pixel() const { return layout == Layout::kRgb ? 3 : 4; }
};

// A file that is no longer than an image can be. Throws Error: kNotFound, kEnvironment, and
// kInvalidArgument for a folder.
std::vector<uint8_t> read_file(const std::filesystem::path& path);

// Colors alone: transparent pixels are laid over white, or keep the colors that they have.
Image to_rgb(const Raster& raster, bool over_white);
// Turns an image that is stored in one of EXIF's orientations, 1 to 8.
Image upright(Image stored, int orientation);

// What a reader found wrong with the bytes.
class DecodeError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Called once the size is known, before pixels are allocated; throws when it is too large.
using CheckSize = std::function<void(int64_t width, int64_t height)>;

// Each reads the header, calls `check`, and then, with `pixels`, the image. Throw DecodeError.
Raster read_png(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);
Raster read_jpeg(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);
Raster read_webp(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);
Raster read_gif(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);
Raster read_tiff(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);
Raster read_bmp(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);
Raster read_ppm(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check);

// Throws Error{kInvalidArgument} for numbers that do not ascend or are no frame's.
void check_numbers(std::span<const int64_t> frames, const ClipInfo& info, const std::string& place);

// The orientation that a TIFF block of EXIF data holds; 1 when it holds none or is damaged.
int exif_orientation(std::span<const uint8_t> tiff);

}  // namespace atelier::media
