// The frames of animated GIF and WebP files, composed as browsers show them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "host/media/codec.h"

namespace atelier::media {

class Animation {
 public:
  virtual ~Animation() = default;

  // How long each frame is shown.
  virtual const std::vector<int>& durations_ms() const = 0;
  // Returns the whole canvas, RGBA, with the next frame drawn; to be called once for each of
  // durations_ms(). Valid until the next call. Throws DecodeError.
  virtual const Raster& next() = 0;
};

// `bytes` outlive what is returned. Throw DecodeError, and what `check` throws.
std::unique_ptr<Animation> open_gif(std::span<const uint8_t> bytes, const CheckSize& check);
std::unique_ptr<Animation> open_webp(std::span<const uint8_t> bytes, const CheckSize& check);

}  // namespace atelier::media
