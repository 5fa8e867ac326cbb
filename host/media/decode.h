// Reads PNG, JPEG, WebP, GIF, TIFF, BMP and PPM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "host/media/image.h"

namespace atelier::media {

struct DecodeOptions {
  // Width times height; more is refused before anything is allocated for the pixels.
  int64_t max_pixels = 178'956'970;
  // Transparent pixels are laid over white; otherwise they keep the colors that the file has.
  bool over_white = true;
};

// What the header of an image says.
struct ImageInfo {
  std::string format;  // "png", "jpeg", "webp", "gif", "tiff", "bmp" or "ppm"
  int width = 0;       // as shown, after orientation
  int height = 0;
  int channels = 3;  // in the file: 1 gray, 2 gray and alpha, 3, 4
  int bits = 8;      // of one channel
  bool has_alpha = false;
  bool is_animated = false;        // or of several pages
  bool has_color_profile = false;  // an embedded ICC profile; it is not applied
  int orientation = 1;             // EXIF, 1 to 8
};

// Says whether `bytes` begin like an image, also of a kind that cannot be read here; 64 bytes are
// enough.
bool looks_like_image(std::span<const uint8_t> bytes);

// Reads no pixels. `name` stands for the image in messages.
// Throws Error: kNotFound and kEnvironment for the file, kUnsupported, named, for another format
// and for what stands in an image's place, kDataLoss for damage, kInvalidArgument for more than
// max_pixels.
ImageInfo probe_image(const std::filesystem::path& path, const DecodeOptions& options = {});
ImageInfo probe_image(std::span<const uint8_t> bytes, std::string_view name,
                      const DecodeOptions& options = {});

// Returns the image as shown: upright by its EXIF orientation, gray and palettes expanded, 16
// bits rounded to 8, CMYK converted, the first frame of an animation, the first page of several.
// Throws as probe_image; an image that ends early is an error.
Image decode_image(std::span<const uint8_t> bytes, std::string_view name,
                   const DecodeOptions& options = {});
Image decode_image(const std::filesystem::path& path, const DecodeOptions& options = {});

struct ImageWithAlpha {
  Image image;  // as decode_image returns it for these options
  Image alpha;  // gray, of the same size: white is opaque; empty when the file has none
};
ImageWithAlpha decode_with_alpha(std::span<const uint8_t> bytes, std::string_view name,
                                 const DecodeOptions& options = {});

}  // namespace atelier::media
