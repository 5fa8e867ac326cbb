#include "atelier/error.h"

#include "host/media/ffmpeg/ffmpeg.h"

namespace atelier::media::ffmpeg {

std::unique_ptr<ClipReader> open_video(const std::filesystem::path& path, const ClipLimits&) {
  throw Error(ErrorCode::kUnsupported, path.string() + ": videos are not read yet");
}

}  // namespace atelier::media::ffmpeg
