// Images of inputs, brought to their size.
#pragma once

#include "atelier/input.h"
#include "atelier/model.h"

#include "host/media/image.h"

namespace atelier::inputs {

struct Sides {
  int64_t height, width;
};

// The size that an input brings an image of height x width to: its own, that of what is made, or,
// as it is, the image's.
Sides fitted_sides(const InputSpec& input, const Sides& image, const MediaTarget& target);

// A part of a picture.
struct Area {
  int64_t top, left, height, width;
};

// Where an image of height x width lies in what is made, or, unless it is padded, all of that.
Area area_of(const InputSpec& input, const Sides& image, const MediaTarget& target);

// The image at that size, as InputSpec::fit says. Beside a mask there is black.
media::Image fitted(const media::Image& image, const InputSpec& input, const MediaTarget& target);

// Brings an image with transparency to that size, white where it is opaque: what stands beside it
// is so.
void fit_with_alpha(media::Image& image, media::Image& alpha, const InputSpec& input,
                    const MediaTarget& target);

}  // namespace atelier::inputs
