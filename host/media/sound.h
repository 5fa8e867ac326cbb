// Sounds in files: the sound of an audio or a video file, decoded, mixed and brought to a rate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace atelier::media {

// What a file says of its sound, found without decoding it.
struct SoundInfo {
  std::string format;  // of the container: "wav", "mp3", "flac", "ogg"…, or as ClipInfo::format
  std::string codec;   // "pcm_s16le", "aac"…
  int channels = 0;
  int sample_rate = 0;  // per second
  int64_t samples = 0;  // of one channel; of a lossy codec nearly as many as are decoded
};

// A sound in memory.
struct Sound {
  int channels = 0;
  int sample_rate = 0;        // per second
  std::vector<float> values;  // in [-1, 1], one channel behind the other

  int64_t samples() const { return static_cast<int64_t>(values.size()) / channels; }
};

// What of a file's sound is wanted, and how.
struct SoundRequest {
  // 1: the mean of the file's channels. 2: its left and right, more than two as FFmpeg mixes them
  // down, one twice.
  int channels = 1;
  int sample_rate = 16'000;  // per second
  // Samples at that rate: the first one, and how many at most.
  int64_t first = 0, count = std::numeric_limits<int64_t>::max();
};

// The longest sound that is read, in samples at the wanted rate: 9 hours at 16 kHz.
inline constexpr int64_t kMostSamples = 512 << 20;

// How many samples such a sound has at another rate: so long that none is lost.
inline int64_t samples_at_rate(int64_t samples, int64_t from_rate, int64_t to_rate) {
  const int64_t seconds = samples / from_rate, rest = samples % from_rate;
  return seconds * to_rate + (rest * to_rate + from_rate - 1) / from_rate;
}

// Says whether a file begins as one that holds a sound alone; 12 bytes are enough.
bool looks_like_sound(std::string_view head);

// Reads the packets of a file and decodes none. Throws Error: kNotFound and kEnvironment for the
// file or where the library for videos is absent, kUnsupported, named, for another format and for a
// file without sound, kDataLoss for damage and for a sound of no samples.
SoundInfo probe_sound(const std::filesystem::path& path);

// Throws as probe_sound(); Error{kDataLoss} with the time for damage and for values that are no
// numbers, {kUnsupported} for a rate or channels that change, {kInvalidArgument} for more than
// kMostSamples.
Sound read_sound(const std::filesystem::path& path, const SoundRequest& request);

// A sound as it is written beside a clip of so many seconds: with its own rate where AAC has that,
// else 48 kHz; of more than two channels left and right. Throws as read_sound().
Sound read_soundtrack(const std::filesystem::path& path, double seconds);

}  // namespace atelier::media
