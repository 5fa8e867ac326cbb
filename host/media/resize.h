// Resizing that equals Pillow's to the bit.
#pragma once

#include "host/media/picture.h"

namespace atelier::media {

enum class Filter { kBox, kBilinear, kBicubic, kLanczos };

// Throws Error{kInvalidArgument} unless width and height are at least 1.
Picture resize(const Picture& picture, int width, int height, Filter filter);

// Cuts a window of that size out of the middle; offsets are rounded half to even.
// Throws Error{kInvalidArgument} when the picture is smaller.
Picture center_crop(const Picture& picture, int width, int height);

// Scales the picture (bilinear) until it covers width x height and cuts the middle out. A picture
// that has that size already comes back as it is.
Picture crop_and_resize(const Picture& picture, int width, int height);

}  // namespace atelier::media
