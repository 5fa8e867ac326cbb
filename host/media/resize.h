// Resizing that equals Pillow's to the bit.
#pragma once

#include <utility>

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

// The width and height that crop_and_resize scales a picture to before it cuts.
std::pair<int, int> covering_size(const Picture& picture, int width, int height);

// Resizes a picture with its transparency, which is gray and of the same size, as Pillow resizes
// RGBA: a pixel's color counts as much as it is opaque.
void resize_with_alpha(Picture& picture, Picture& alpha, int width, int height, Filter filter);

}  // namespace atelier::media
