// Makes JPEG files with text.
#pragma once

#include <string>

#include "host/media/image.h"
#include "host/media/text.h"

namespace atelier::media {

inline constexpr int kMaxJpegSide = 65'500;  // pixels, of libjpeg

// Returns the bytes of a JPEG file of quality 95 with colours at full resolution. `text` becomes
// the user's comment of its EXIF data; one that is longer than such data may be, about 64 kB, is
// left out. Throws Error{kInvalidArgument} for a size that the format does not allow.
std::string encode_jpeg(const Image& image, const Text& text = {});

}  // namespace atelier::media
