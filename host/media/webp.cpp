#include <memory>
#include <webp/decode.h>
#include <webp/demux.h>

#include "host/media/codec.h"

namespace atelier::media {
namespace {

using Demuxer = std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)>;
using Animation = std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)>;

const char* describe(VP8StatusCode status) {
  switch (status) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return "the file ends before the image does";
    case VP8_STATUS_OUT_OF_MEMORY:
      return "not enough memory";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return "an unsupported feature of the format";
    default:
      return "damaged WebP data";
  }
}

// The first frame, on a canvas that is transparent where the frame does not reach.
void read_first_frame(std::span<const uint8_t> bytes, Raster& raster) {
  WebPAnimDecoderOptions options;
  WebPAnimDecoderOptionsInit(&options);
  options.color_mode = MODE_RGBA;
  const WebPData data = {bytes.data(), bytes.size()};
  const Animation animation(WebPAnimDecoderNew(&data, &options), WebPAnimDecoderDelete);
  uint8_t* frame = nullptr;
  int timestamp_ms = 0;
  if (!animation || !WebPAnimDecoderGetNext(animation.get(), &frame, &timestamp_ms)) {
    throw DecodeError("damaged WebP animation");
  }
  raster.data.assign(frame, frame + size_t{4} * raster.info.width * raster.info.height);
}

}  // namespace

Raster read_webp(std::span<const uint8_t> bytes, bool pixels, const CheckSize& check) {
  WebPDecoderConfig config;
  WebPInitDecoderConfig(&config);
  const VP8StatusCode header = WebPGetFeatures(bytes.data(), bytes.size(), &config.input);
  if (header != VP8_STATUS_OK) throw DecodeError(describe(header));
  Raster raster;
  raster.info.format = "webp";
  raster.info.width = config.input.width;
  raster.info.height = config.input.height;
  raster.info.has_alpha = config.input.has_alpha != 0;
  raster.info.is_animated = config.input.has_animation != 0;
  raster.info.channels = raster.info.has_alpha ? 4 : 3;
  check(raster.info.width, raster.info.height);

  const WebPData data = {bytes.data(), bytes.size()};
  if (const Demuxer demuxer(WebPDemux(&data), WebPDemuxDelete); demuxer) {
    const uint32_t flags = WebPDemuxGetI(demuxer.get(), WEBP_FF_FORMAT_FLAGS);
    raster.info.has_color_profile = (flags & ICCP_FLAG) != 0;
    WebPChunkIterator chunk;
    if (WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk)) {
      std::span<const uint8_t> exif(chunk.chunk.bytes, chunk.chunk.size);
      // Some writers keep the prefix of JPEG files.
      if (exif.size() > 6 && exif[0] == 'E' && exif[1] == 'x') exif = exif.subspan(6);
      raster.info.orientation = exif_orientation(exif);
      WebPDemuxReleaseChunkIterator(&chunk);
    }
  }
  raster.layout = raster.info.has_alpha || raster.info.is_animated ? Layout::kRgba : Layout::kRgb;
  if (!pixels) return raster;
  if (raster.info.is_animated) {
    read_first_frame(bytes, raster);
    return raster;
  }
  const size_t row_bytes = static_cast<size_t>(raster.info.width) * raster.bytes_per_pixel();
  raster.data.resize(row_bytes * raster.info.height);
  config.output.colorspace = raster.layout == Layout::kRgba ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = raster.data.data();
  config.output.u.RGBA.stride = static_cast<int>(row_bytes);
  config.output.u.RGBA.size = raster.data.size();
  const VP8StatusCode status = WebPDecode(bytes.data(), bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (status != VP8_STATUS_OK) throw DecodeError(describe(status));
  return raster;
}

}  // namespace atelier::media
