// Resizing that equals Pillow's to the bit.
#pragma once

#include <utility>

#include "atelier/picture.h"

#include "host/media/image.h"

namespace atelier::media {

using Filter = ResizeFilter;

// Throws Error{kInvalidArgument} unless width and height are at least 1.
Image resize(const Image& image, int width, int height, Filter filter);

// Cuts a window of that size out of the middle; offsets are rounded half to even.
// Throws Error{kInvalidArgument} when the image is smaller.
Image center_crop(const Image& image, int width, int height);

// Scales the image until it covers width x height and cuts the middle out. An image that has that
// size already comes back as it is.
Image crop_and_resize(const Image& image, int width, int height, Filter filter = Filter::kBilinear);

// The width and height that crop_and_resize scales an image to before it cuts.
std::pair<int, int> covering_size(const Image& image, int width, int height);

// The largest width and height of the shape of an image of those sides that lie within width x
// height, both rounded down and at least 1.
std::pair<int, int> size_within(int image_width, int image_height, int width, int height);

// Puts the image into the middle of width x height, rounded to the left and to the top, beside gray
// of that brightness, from 0 to 255. The image is not larger.
Image padded(const Image& image, int width, int height, int level);

// Resizes an image with its transparency, which is gray and of the same size, as Pillow resizes
// RGBA: a pixel's color counts as much as it is opaque.
void resize_with_alpha(Image& image, Image& alpha, int width, int height, Filter filter);

}  // namespace atelier::media
