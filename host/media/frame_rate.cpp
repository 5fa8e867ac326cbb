#include "host/media/frame_rate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace atelier::media {
namespace {

// Files round times to milliseconds: what differs by no more is equally near.
constexpr double kEquallyNear = 1.5e-3;
// So that 5 s at 16 frames a second are 80 frames, however 5 s are rounded.
constexpr double kAlmostAFrame = 1e-3;
constexpr double kMostFrames = 1e6;  // as ClipLimits has it

size_t nearest(const std::vector<double>& times, double time) {
  const auto after = std::lower_bound(times.begin(), times.end(), time);
  const auto i = static_cast<size_t>(after - times.begin());
  if (i == 0) return 0;
  if (i == times.size()) return i - 1;
  return times[i] - time <= time - times[i - 1] + kEquallyNear ? i : i - 1;
}

}  // namespace

std::vector<int64_t> frames_at_rate(const ClipInfo& clip, double fps) {
  if (!(fps > 0 && clip.fps > 0)) {
    std::vector<int64_t> all(static_cast<size_t>(clip.frames()));
    std::iota(all.begin(), all.end(), int64_t{0});
    return all;
  }
  const double count =
      std::clamp(std::floor(clip.duration_s * fps + kAlmostAFrame), 1.0, kMostFrames);
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i)
    frames.push_back(static_cast<int64_t>(nearest(clip.times_s, static_cast<double>(i) / fps)));
  return frames;
}

}  // namespace atelier::media
