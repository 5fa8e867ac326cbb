#include "host/serve/masks.h"

#include <utility>

#include "atelier/error.h"

#include "host/http/server.h"
#include "host/media/decode.h"
#include "host/media/png.h"

namespace atelier::serve {
namespace {

constexpr int64_t kMostMaskPixels = int64_t{1} << 25;

template <typename F>
auto decoded(const Upload& mask, F&& decode) {
  try {
    const std::string& bytes = mask.bytes();
    return decode(std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), "mask",
                  media::DecodeOptions{.max_pixels = kMostMaskPixels});
  } catch (const Error& error) {
    throw http::HttpError(400, error.what());
  }
}

Upload inverted(media::Image image) {
  for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(255 - value);
  return Upload(media::encode_png(image));
}

}  // namespace

Upload mask_of_transparent(Upload mask) {
  media::ImageWithAlpha image =
      decoded(mask, [](auto... about) { return media::decode_with_alpha(about...); });
  if (image.alpha.rgb.empty()) return mask;
  return inverted(std::move(image.alpha));
}

Upload inverted_mask(const Upload& mask) {
  return inverted(decoded(mask, [](auto... about) { return media::decode_image(about...); }));
}

}  // namespace atelier::serve
