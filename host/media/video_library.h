// libatelier_video.so: FFmpeg behind one door, opened when the first video or sound is met.
#pragma once

#include <filesystem>
#include <memory>

#include "host/media/clip.h"
#include "host/media/clip_writer.h"
#include "host/media/sound.h"

namespace atelier::media {

// What the library gives. `abi` is compared before anything else is read.
struct VideoLibrary {
  const char* abi;
  // As open_clip(), for videos.
  std::unique_ptr<ClipReader> (*open_video)(const std::filesystem::path&, const ClipLimits&);
  // As create_clip(), for MP4: H.264, BT.709, sound in AAC.
  std::unique_ptr<ClipWriter> (*create_video)(const std::filesystem::path&, const ClipSettings&);
  const char* version;  // "FFmpeg 5.1.6"
  // Throws Error{kEnvironment} where this FFmpeg lacks the encoder that create_video() uses.
  void (*require_encoder)();
  // As the functions of these names, for files that are there.
  SoundInfo (*probe_sound)(const std::filesystem::path&);
  Sound (*read_sound)(const std::filesystem::path&, const SoundRequest&);
};

// Opens the library, which lies in lib/ beside bin/, where the program is; once for the process.
// Throws Error{kEnvironment}, always the same, when it is absent or does not fit the program.
const VideoLibrary& video_library();

}  // namespace atelier::media
