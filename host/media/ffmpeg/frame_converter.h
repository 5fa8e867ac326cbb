// Decoded frames to images.
#pragma once

#include "host/media/ffmpeg/ffmpeg.h"

namespace atelier::media::ffmpeg {

// Converts to 8-bit RGB as FFmpeg's scaler does with exact rounding: by the frame's matrix
// (BT.601 where it names none) and range, chroma by bicubic interpolation. Transparent pixels are
// laid over white. Keeps the scaler from frame to frame.
class FrameConverter {
 public:
  // Returns an image of that size, which is the frame's where pixels are square.
  // Throws Error{kUnsupported} without place for a pixel format that cannot be converted.
  Image convert(const AVFrame& frame, int width, int height);

 private:
  // What a scaler is made for.
  struct Kind {
    int format = AV_PIX_FMT_NONE, frame_width = 0, frame_height = 0;
    int matrix = 0, width = 0, height = 0;
    bool is_full_range = false;

    bool operator==(const Kind&) const = default;
  };

  void prepare(const Kind& kind, AVPixelFormat output);

  Kind kind_;
  Scaler scaler_;
};

bool has_alpha(const AVFrame& frame);

}  // namespace atelier::media::ffmpeg
