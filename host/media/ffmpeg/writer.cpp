#include "atelier/error.h"

#include "host/media/ffmpeg/ffmpeg.h"

namespace atelier::media::ffmpeg {

std::unique_ptr<VideoWriter> create_video(const std::filesystem::path& path, const VideoSettings&) {
  throw Error(ErrorCode::kUnsupported, path.string() + ": videos are not written yet");
}

}  // namespace atelier::media::ffmpeg
