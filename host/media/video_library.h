// libatelier_video.so: FFmpeg behind one door, opened when the first video is met.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "host/media/clip.h"

namespace atelier::media {

struct VideoSettings {
  int width = 0;   // of every frame; even
  int height = 0;  // even
  double fps = 0;
  int crf = 18;  // H.264's constant rate factor: 0 is lossless, 51 the worst
  std::vector<std::pair<std::string, std::string>> metadata;  // of the container, UTF-8
};

// Writes an MP4 file: H.264, BT.709. A file that is not finished is not whole.
class VideoWriter {
 public:
  virtual ~VideoWriter() = default;

  // Throws Error{kInvalidArgument} for a frame of another size, kEnvironment when writing fails.
  virtual void add(const Image& frame) = 0;

  // Writes what is left. To be called once, after the last frame. Throws as add().
  virtual void finish() = 0;
};

// What the library gives. `abi` is compared before anything else is read.
struct VideoLibrary {
  const char* abi;
  // As open_clip(), for videos.
  std::unique_ptr<ClipReader> (*open_video)(const std::filesystem::path&, const ClipLimits&);
  // Throws Error{kInvalidArgument} for settings that the format does not allow, {kEnvironment} when
  // the file cannot be made.
  std::unique_ptr<VideoWriter> (*create_video)(const std::filesystem::path&, const VideoSettings&);
  const char* version;  // "FFmpeg 5.1.6"
};

// Opens the library, which lies in lib/ beside bin/, where the program is; once for the process.
// Throws Error{kEnvironment}, always the same, when it is absent or does not fit the program.
const VideoLibrary& video_library();

}  // namespace atelier::media
