// The readers of images.
#include <algorithm>
#include <cstdint>
#include <span>

#include "atelier/error.h"

#include "formats/utf8.h"
#include "fuzz/entries.h"
#include "fuzz/promise.h"
#include "host/media/decode.h"

namespace atelier::formats {

void fuzz_image(std::string_view bytes) {
  const std::span<const uint8_t> data(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  const media::DecodeOptions options = {.max_pixels = 1 << 16};
  try {
    const media::ImageInfo info = media::probe_image(data, "x", options);
    promise(info.width > 0 && info.height > 0, "sides are above 0");
    promise(media::looks_like_image(data.first(std::min<size_t>(data.size(), 64))),
            "64 bytes tell an image");
    const auto [image, alpha] = media::decode_with_alpha(data, "x", options);
    promise(image.width == info.width && image.height == info.height, "the header tells the size");
    promise(int64_t{image.width} * image.height <= options.max_pixels, "the limit holds");
    promise(alpha.rgb.empty() || alpha.rgb.size() == image.rgb.size(),
            "transparency is of the image's size");
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::kUnsupported || error.code() == ErrorCode::kDataLoss ||
                error.code() == ErrorCode::kInvalidArgument,
            "an image is unknown, damaged or too large");
    promise(find_invalid_utf8(error.what()) == std::string_view::npos, "a message is UTF-8");
  }
}

}  // namespace atelier::formats
