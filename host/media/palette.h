// An image in 256 colours of its own.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "host/media/image.h"

namespace atelier::media {

struct IndexedImage {
  std::vector<std::array<uint8_t, 3>> colors;  // 1 to 256
  std::vector<uint8_t> indices;                // of each pixel, rows from top to bottom
};

// Chooses the colours by their squared error over the image; pixels get the nearest one, without
// dithering, which would flicker from frame to frame. An image of one byte's colours keeps them as
// long as no two of them share the upper five bits of all channels.
IndexedImage to_indexed(const Image& image);

}  // namespace atelier::media
