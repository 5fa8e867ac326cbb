// Clips in files: videos, animations, folders of frames, read by the frames that are wanted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "host/media/image.h"

namespace atelier::media {

// What a clip's file says, found without decoding a video's frames.
struct ClipInfo {
  std::string
      format;  // "mp4", "matroska", "avi", "mpegts", "gif", "webp", "folder"; of a still "png"…
  std::string codec;  // of a video: "h264", "vp9"…; otherwise empty
  int width = 0;      // as shown: after rotation, pixels square
  int height = 0;
  int rotation = 0;       // degrees clockwise by which stored frames are turned: 0, 90, 180, 270
  double fps = 0;         // the mean rate of `times`; 0 where the file has no times, and for stills
  double duration_s = 0;  // to the end of the last frame; 0 as above
  std::vector<double> times_s;    // when each frame is shown, after the first one; ascending
  bool is_variable_rate = false;  // frames are not equally long
  bool has_sound = false;
  bool has_alpha = false;                                     // frames are laid over white
  std::vector<std::pair<std::string, std::string>> metadata;  // of the container, UTF-8

  int64_t frames() const { return static_cast<int64_t>(times_s.size()); }
};

struct ClipLimits {
  int64_t max_pixels = 178'956'970;  // of one frame, as for images
  int64_t max_frames = 1'000'000;
};

// One open clip. Used by one thread at a time; several readers of one file are independent.
class ClipReader {
 public:
  virtual ~ClipReader() = default;

  virtual const ClipInfo& info() const = 0;

  // Gives the frames of these numbers to `sink`, in order. Numbers ascend and may repeat; what lies
  // between them is decoded only where the format makes that necessary. May be called again.
  // Throws Error: kInvalidArgument for numbers that do not ascend or that the clip lacks, kDataLoss
  // with frame and time for damage, kUnsupported for a size that changes inside the clip.
  virtual void read(std::span<const int64_t> frames, const std::function<void(Image)>& sink) = 0;
};

// Says whether a path is a clip and no still: a video, also of a kind that cannot be read here, an
// animated GIF or WebP, a folder that holds images. False for what cannot be read.
bool looks_like_clip(const std::filesystem::path& path);

// Opens a clip; a still is one of one frame. A folder's frames are its images in natural order
// (9 before 10), all of one size; without times, so that times_s counts 0, 1, 2, … .
// Throws Error: kNotFound and kEnvironment for the file or where the library for videos is absent,
// kUnsupported, named, for another format or a video without pictures, kDataLoss for damage,
// kInvalidArgument for more than a limit.
std::unique_ptr<ClipReader> open_clip(const std::filesystem::path& path,
                                      const ClipLimits& limits = {});

}  // namespace atelier::media
