#include "host/media/ffmpeg/frame_converter.h"

#include <new>

#include "atelier/error.h"

#include "host/media/codec.h"

namespace atelier::media::ffmpeg {
namespace {

constexpr int kExact = SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT | SWS_BITEXACT;

// The formats that have their range in their name, and the same format without it.
AVPixelFormat without_range(AVPixelFormat format) {
  switch (format) {
    case AV_PIX_FMT_YUVJ420P:
      return AV_PIX_FMT_YUV420P;
    case AV_PIX_FMT_YUVJ422P:
      return AV_PIX_FMT_YUV422P;
    case AV_PIX_FMT_YUVJ444P:
      return AV_PIX_FMT_YUV444P;
    case AV_PIX_FMT_YUVJ440P:
      return AV_PIX_FMT_YUV440P;
    case AV_PIX_FMT_YUVJ411P:
      return AV_PIX_FMT_YUV411P;
    default:
      return format;
  }
}

// The scaler writes whole vectors, beyond the end of a row of the image.
Frame make_output(AVPixelFormat format, int width, int height) {
  Frame frame(av_frame_alloc());
  if (frame == nullptr) throw std::bad_alloc();
  frame->format = format;
  frame->width = width;
  frame->height = height;
  if (av_frame_get_buffer(frame.get(), /*align=*/0) < 0) throw std::bad_alloc();
  return frame;
}

}  // namespace

bool has_alpha(const AVFrame& frame) {
  const AVPixFmtDescriptor* format = av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  return format != nullptr && (format->flags & AV_PIX_FMT_FLAG_ALPHA) != 0;
}

void FrameConverter::prepare(const Kind& kind, AVPixelFormat output) {
  if (scaler_ != nullptr && kind == kind_) return;
  const auto format = static_cast<AVPixelFormat>(kind.format);
  scaler_.reset(sws_getContext(kind.frame_width, kind.frame_height, format, kind.width, kind.height,
                               output, kExact, nullptr, nullptr, nullptr));
  if (scaler_ == nullptr) {
    const char* name = av_get_pix_fmt_name(format);
    throw Error(
        ErrorCode::kUnsupported,
        std::string("frames of pixel format ") + (name ? name : "unknown") + " cannot be converted",
        "convert it to MP4 (H.264, yuv420p)");
  }
  constexpr int kOne = 1 << 16;
  sws_setColorspaceDetails(scaler_.get(), sws_getCoefficients(kind.matrix), kind.is_full_range,
                           sws_getCoefficients(SWS_CS_DEFAULT), /*dstRange=*/1, /*brightness=*/0,
                           /*contrast=*/kOne, /*saturation=*/kOne);
  kind_ = kind;
}

Image FrameConverter::convert(const AVFrame& frame, int width, int height) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const bool is_full_range =
      frame.color_range == AVCOL_RANGE_JPEG || without_range(format) != format;
  const bool with_alpha = has_alpha(frame);
  const AVPixelFormat output = with_alpha ? AV_PIX_FMT_RGBA : AV_PIX_FMT_RGB24;
  prepare({without_range(format), frame.width, frame.height, frame.colorspace, width, height,
           is_full_range},
          output);
  const Frame scaled = make_output(output, width, height);
  if (sws_scale(scaler_.get(), frame.data, frame.linesize, 0, frame.height, scaled->data,
                scaled->linesize) != height)
    throw Error(ErrorCode::kInternal, "FFmpeg's scaler gives no whole frame");

  Raster raster;
  raster.info.width = width;
  raster.info.height = height;
  raster.layout = with_alpha ? Layout::kRgba : Layout::kRgb;
  raster.data.resize(size_t{1} * width * height * raster.bytes_per_pixel());
  av_image_copy_to_buffer(raster.data.data(), static_cast<int>(raster.data.size()), scaled->data,
                          scaled->linesize, output, width, height, /*align=*/1);
  return to_rgb(raster, /*over_white=*/true);
}

}  // namespace atelier::media::ffmpeg
