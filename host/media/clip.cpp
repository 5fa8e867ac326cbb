#include "host/media/clip.h"

#include "host/media/video_library.h"

namespace atelier::media {

bool looks_like_clip(const std::filesystem::path&) {
  return false;
}

std::unique_ptr<ClipReader> open_clip(const std::filesystem::path& path, const ClipLimits& limits) {
  return video_library().open_video(path, limits);
}

}  // namespace atelier::media
