// The readers of videos and sounds, over FFmpeg's own code.
#include <algorithm>
#include <functional>
#include <sys/mman.h>
#include <unistd.h>

#include "atelier/error.h"

#include "fuzz/entries.h"
#include "fuzz/promise.h"
#include "host/media/ffmpeg/ffmpeg.h"

namespace atelier::formats {
namespace {

using media::ClipReader;
using media::Image;

constexpr media::ClipLimits kLimits = {.max_pixels = 1 << 16, .max_frames = 64};

void read_clip(const std::string& path) {
  const std::unique_ptr<ClipReader> clip = media::ffmpeg::open_video(path, kLimits);
  const media::ClipInfo& info = clip->info();
  promise(info.frames() > 0 && info.frames() <= kLimits.max_frames, "the limit of frames holds");
  promise(info.width > 0 && info.height > 0, "sides are above 0");
  promise(int64_t{info.width} * info.height <= kLimits.max_pixels, "the limit of pixels holds");
  promise(std::ranges::is_sorted(info.times_s) && info.times_s[0] == 0, "times ascend from 0");
  const int64_t numbers[] = {0, info.frames() / 2, info.frames() - 1};
  size_t count = 0;
  clip->read(numbers, [&](const Image& image) {
    promise(image.width == info.width && image.height == info.height, "frames are of one size");
    ++count;
  });
  promise(count == std::size(numbers), "each frame that is asked for is given");
}

void read_sound(const std::string& path) {
  const media::SoundInfo info = media::ffmpeg::probe_sound(path);
  promise(info.channels > 0 && info.sample_rate > 0 && info.samples >= 0, "a sound has a shape");
  constexpr int64_t kMostSamples = 1 << 16;
  const media::Sound sound = media::ffmpeg::read_sound(path, {.count = kMostSamples});
  promise(sound.channels == 1 && sound.samples() <= kMostSamples, "no more than is asked for");
  promise(std::ranges::all_of(sound.values, [](float x) { return x >= -1 && x <= 1; }),
          "values lie within 1");
}

// What is wrong with a file is one of these.
void expect_refusal(const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    promise(error.code() == ErrorCode::kUnsupported || error.code() == ErrorCode::kDataLoss ||
                error.code() == ErrorCode::kInvalidArgument,
            "a video is unknown, damaged or too large");
  }
}

}  // namespace

void fuzz_video(std::string_view bytes) {
  av_log_set_level(AV_LOG_QUIET);
  const int file = memfd_create("clip", MFD_CLOEXEC);
  promise(file >= 0 && write(file, bytes.data(), bytes.size()) == ssize_t(bytes.size()),
          "a file in memory can be written");
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  expect_refusal([&] { read_clip(path); });
  expect_refusal([&] { read_sound(path); });
  close(file);
}

}  // namespace atelier::formats
