// What the parts of libatelier_video.so share: FFmpeg's headers, owners of its objects, its errors.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avutil.h>
#include <libavutil/display.h>
#include <libavutil/imgutils.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswresample/swresample.h>
#include <libswscale/swscale.h>
}

#include "atelier/error.h"

#include "host/media/video_library.h"

namespace atelier::media::ffmpeg {

std::unique_ptr<ClipReader> open_video(const std::filesystem::path& path, const ClipLimits& limits);
std::unique_ptr<ClipWriter> create_video(const std::filesystem::path& path,
                                         const ClipSettings& settings);
void require_encoder();
SoundInfo probe_sound(const std::filesystem::path& path);
Sound read_sound(const std::filesystem::path& path, const SoundRequest& request);

// Deletes what FFmpeg frees through a pointer to the pointer.
template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(&object);
  }
};
using Frame = std::unique_ptr<AVFrame, Freed<av_frame_free>>;
using Packet = std::unique_ptr<AVPacket, Freed<av_packet_free>>;
using Codec = std::unique_ptr<AVCodecContext, Freed<avcodec_free_context>>;
using Resampler = std::unique_ptr<SwrContext, Freed<swr_free>>;
struct FreeScaler {
  void operator()(SwsContext* scaler) const { sws_freeContext(scaler); }
};
using Scaler = std::unique_ptr<SwsContext, FreeScaler>;

// FFmpeg's words for one of its error codes.
inline std::string message_of(int code) {
  char text[AV_ERROR_MAX_STRING_SIZE] = "";
  av_strerror(code, text, sizeof(text));
  return text;
}

// Throw where FFmpeg cannot write. Errors name no file.
inline void require(int result) {
  if (result < 0) throw Error(ErrorCode::kEnvironment, "cannot be written: " + message_of(result));
}
template <typename T>
T required(T made) {
  if (!made) throw Error(ErrorCode::kOutOfMemory, "not enough memory to write a video");
  return made;
}

}  // namespace atelier::media::ffmpeg
