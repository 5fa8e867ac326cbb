#include <memory>
#include <webp/decode.h>
#include <webp/demux.h>

#include "host/media/animation.h"

namespace atelier::media {
namespace {

using Demuxer = std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)>;
using AnimationDecoder = std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)>;

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

class WebpAnimation : public Animation {
 public:
  WebpAnimation(std::span<const uint8_t> bytes, const CheckSize& check)
      : data_{bytes.data(), bytes.size()} {
    const Demuxer demuxer(WebPDemux(&data_), WebPDemuxDelete);
    if (!demuxer) throw DecodeError("the file ends before the animation does, or is damaged");
    canvas_.info.width = static_cast<int>(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH));
    canvas_.info.height = static_cast<int>(WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT));
    canvas_.layout = Layout::kRgba;
    check(canvas_.info.width, canvas_.info.height);
    WebPIterator frame;
    if (!WebPDemuxGetFrame(demuxer.get(), 1, &frame)) throw DecodeError("holds no image");
    do {
      // Browsers take what is too short to be meant as a tenth of a second.
      durations_ms_.push_back(frame.duration > 10 ? frame.duration : 100);
    } while (WebPDemuxNextFrame(&frame));
    WebPDemuxReleaseIterator(&frame);
  }

  const std::vector<int>& durations_ms() const override { return durations_ms_; }

  const Raster& next() override {
    if (!decoder_) open_decoder();
    uint8_t* frame = nullptr;
    int end_ms = 0;
    if (!decoder_ || !WebPAnimDecoderGetNext(decoder_.get(), &frame, &end_ms))
      throw DecodeError("damaged WebP animation");
    canvas_.data.assign(frame, frame + size_t{4} * canvas_.info.width * canvas_.info.height);
    return canvas_;
  }

 private:
  void open_decoder() {
    WebPAnimDecoderOptions options;
    WebPAnimDecoderOptionsInit(&options);
    options.color_mode = MODE_RGBA;
    decoder_.reset(WebPAnimDecoderNew(&data_, &options));
  }

  WebPData data_;
  AnimationDecoder decoder_{nullptr, WebPAnimDecoderDelete};
  Raster canvas_;
  std::vector<int> durations_ms_;
};

}  // namespace

std::unique_ptr<Animation> open_webp(std::span<const uint8_t> bytes, const CheckSize& check) {
  return std::make_unique<WebpAnimation>(bytes, check);
}

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
    raster.data = WebpAnimation(bytes, check).next().data;
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
