#include "host/media/frame_rate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace atelier::media {
namespace {

// Times that are rounded to milliseconds: what differs by no more is equally near; of exact ones
// what numbers leave open.
constexpr double kEquallyNear = 1.5e-3, kExactly = 1e-7;
// So that 5 s at 16 frames a second are 80 frames, however 5 s are rounded.
constexpr double kAlmostAFrame = 1e-3;
constexpr double kMostFrames = 1e6;  // as ClipLimits has it

bool is_whole_ms(double time_s) {
  const double ms = time_s * 1000;
  return std::abs(ms - std::round(ms)) < 1e-6 * std::max(1.0, ms);
}

// Whether a file's unit of time cannot say its rate: all times are whole milliseconds (Matroska,
// WebP), and not as far from one another.
bool are_rounded(const std::vector<double>& times) {
  if (!std::ranges::all_of(times, is_whole_ms)) return false;
  for (size_t i = 2; i < times.size(); ++i) {
    if (std::abs(times[i] - 2 * times[i - 1] + times[i - 2]) > kExactly) return true;
  }
  return false;
}

size_t nearest(const std::vector<double>& times, double time, double equally_near) {
  const auto after = std::lower_bound(times.begin(), times.end(), time);
  const auto i = static_cast<size_t>(after - times.begin());
  if (i == 0) return 0;
  if (i == times.size()) return i - 1;
  return times[i] - time <= time - times[i - 1] + equally_near ? i : i - 1;
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
  const double equally_near = are_rounded(clip.times_s) ? kEquallyNear : kExactly;
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i)
    frames.push_back(
        static_cast<int64_t>(nearest(clip.times_s, static_cast<double>(i) / fps, equally_near)));
  return frames;
}

}  // namespace atelier::media
