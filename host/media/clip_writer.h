// Writes clips frame by frame: MP4, animated WebP and GIF.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "atelier/error.h"

#include "host/media/image.h"
#include "host/media/sound.h"

namespace atelier::media {

struct ClipSettings {
  int width = 0, height = 0;  // of every frame
  double fps = 0;             // frames per second
  std::string comment = {};   // ASCII, see to_comment(); empty: the file says nothing
  // Beside the frames, from the first one on; null: there is none. Formats without sound, see
  // ClipFormat, leave it out.
  std::shared_ptr<const Sound> sound = nullptr;
};

// What has been added takes no memory, or a bounded part of it. Not thread-safe.
class ClipWriter {
 public:
  virtual ~ClipWriter() = default;

  // Throws Error{kInvalidArgument} for a frame of another size, {kEnvironment} when writing fails.
  virtual void add(const Image& frame) = 0;

  // Writes what is left: until then the file is not whole. To be called once, behind the last
  // frame. Throws as add().
  virtual void finish() = 0;
};

// Throws Error{kInvalidArgument} for a frame of another size.
inline void require_size(const ClipSettings& settings, const Image& frame) {
  if (frame.width == settings.width && frame.height == settings.height) return;
  throw Error(ErrorCode::kInvalidArgument, "a frame of " + std::to_string(frame.width) + "x" +
                                               std::to_string(frame.height) + " in a clip of " +
                                               std::to_string(settings.width) + "x" +
                                               std::to_string(settings.height));
}

struct ClipFormat {
  std::string_view extension;  // ".mp4"
  int64_t max_side;            // pixels
  double max_fps;              // above which the format or its players are slower
  bool has_sound = false;
};

// The format of a file's name; null: it is no clip's.
const ClipFormat* find_clip_format(const std::filesystem::path& path);

// MP4 where it can be written, else WebP.
const ClipFormat& preferred_clip_format();

// Throws Error{kEnvironment}, with the way out, where what writes the format is not installed.
void require_clip_writer(const ClipFormat& format);

// Begins a clip in a file that replaces what is there. Errors name no file. Frames of MP4 and WebP
// have half the colour resolution; odd sides of MP4 get one more row or column like the last.
// Throws as require_clip_writer(), and Error{kEnvironment} when the file cannot be written.
std::unique_ptr<ClipWriter> create_clip(const ClipFormat& format, const std::filesystem::path& path,
                                        const ClipSettings& settings);

}  // namespace atelier::media
