#include "host/inputs/beside.h"

#include <algorithm>
#include <cmath>

#include "host/media/frame_rate.h"
#include "host/report/text.h"

namespace atelier::inputs {

std::vector<int64_t> with_tail(int64_t length, int64_t count, Tail tail) {
  std::vector<int64_t> numbers;
  const int64_t period = std::max<int64_t>(2 * (length - 1), 1);  // there and back
  for (int64_t i = 0; i < count; ++i) {
    if (i < length) {
      numbers.push_back(i);
    } else if (tail == Tail::kZero || tail == Tail::kMinusOne) {
      numbers.push_back(kFiller);
    } else if (tail == Tail::kRefuse || length == 0) {
      break;
    } else if (tail == Tail::kRepeat) {
      numbers.push_back(length - 1);
    } else {
      const int64_t place = i % period;
      numbers.push_back(place < length ? place : period - place);
    }
  }
  return numbers;
}

std::vector<int64_t> seen_frames(const InputSpec& input, const media::ClipInfo& clip, double fps) {
  const bool is_brought = input.fps > 0 || input.role == InputRole::kStart;
  return media::frames_at_rate(clip, is_brought && fps > 0 ? fps : input.fps);
}

std::vector<int64_t> read_frames(const InputSpec& input, const media::ClipInfo& clip,
                                 const Made& made) {
  const std::vector<int64_t> seen = seen_frames(input, clip, made.fps);
  const bool is_start = input.role == InputRole::kStart;
  if (!input.along_clip && !is_start) return seen;
  const bool by_number = input.fps <= 0 && !made.numbers.empty();
  const int64_t end =
      by_number ? made.numbers.back() + 1 : made.first + made.target.frames;  // of places in `seen`
  const std::vector<int64_t> places =
      with_tail(std::ssize(seen), end, is_start ? Tail::kRefuse : input.tail);
  std::vector<int64_t> frames;
  for (int64_t i = 0; i < made.target.frames; ++i) {
    const int64_t wanted = by_number ? made.numbers[static_cast<size_t>(i)] : made.first + i;
    if (wanted >= std::ssize(places)) break;
    const int64_t place = places[static_cast<size_t>(wanted)];
    frames.push_back(place == kFiller ? kFiller : seen[static_cast<size_t>(place)]);
  }
  return frames;
}

SoundPart part_beside(const InputSpec& input, const Made& made) {
  if (!input.along_clip || made.fps <= 0) return {};
  const auto samples = [&](int64_t frames) {
    return std::llround(static_cast<double>(frames) / made.fps *
                        static_cast<double>(input.sample_rate));
  };
  return {samples(made.first), samples(made.target.frames)};
}

bool is_too_short(const InputSpec& input, int64_t samples, int64_t end) {
  constexpr int64_t kMomentsASecond = 10;
  return end - samples > input.sample_rate / kMomentsASecond;
}

std::string shorter_text(const InputSpec& input, int64_t samples, int64_t end) {
  const auto seconds = [&](int64_t count) {
    const double exact = static_cast<double>(count) / static_cast<double>(input.sample_rate);
    return report::number_text(std::floor(1000.0 * exact) / 1000.0) + " s";
  };
  return "lasts " + seconds(samples) + ", and " + seconds(end) + " are needed";
}

}  // namespace atelier::inputs
