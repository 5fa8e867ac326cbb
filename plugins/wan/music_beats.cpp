// Where music has onsets and beats: the tempo is that of the strongest period, and beats lie on
// strong onsets about a period apart.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>

#include "music_parts.h"

namespace wan::music {
namespace {

using Values = std::vector<double>;

constexpr double kFramesASecond = kToldRate / kMusicHop;
constexpr double kTightness = 100;  // of a beat to its period, see strongest_path()

Values values_of(const at::Tensor& x) {
  const at::Tensor plain = x.contiguous();
  return {plain.data_ptr<double>(), plain.data_ptr<double>() + plain.numel()};
}

// Onsets around each frame, [frames, window]: behind both ends they fade out.
at::Tensor around(const at::Tensor& strength, int64_t window) {
  const int64_t beside = window / 2, frames = strength.size(0);
  const at::Tensor ramp = at::arange(beside, doubles()) / static_cast<double>(beside);
  const at::Tensor padded =
      at::cat({ramp * strength[0], strength, ramp.flip(0) * strength[frames - 1]});
  return padded.unfold(0, window, 1).slice(0, 0, frames);
}

double deviation(const Values& x) {
  double mean = 0, sum = 0;
  for (const double value : x) mean += value / static_cast<double>(x.size());
  for (const double value : x) sum += (value - mean) * (value - mean);
  return x.size() < 2 ? 0 : std::sqrt(sum / static_cast<double>(x.size() - 1));
}

// How well each frame would do as a beat: onsets near it, in units of their deviation. As
// published, the first frame is not seen from those of the first period.
Values local_scores(const Values& strength, int64_t period) {
  const double unit = deviation(strength) + std::numeric_limits<float>::min();
  const auto frames = static_cast<int64_t>(strength.size());
  Values scores(strength.size(), 0.0);
  for (int64_t i = 0; i < frames; ++i) {
    const int64_t first = std::max<int64_t>(0, i + period - frames + 1);
    const int64_t end = std::min(i + period, 2 * period + 1);
    for (int64_t k = first; k < end; ++k) {
      const double apart = 32.0 * static_cast<double>(k - period) / static_cast<double>(period);
      scores[i] += std::exp(-0.5 * apart * apart) * strength[i + period - k] / unit;
    }
  }
  return scores;
}

// The best sum of scores of beats up to each frame, and the beat before it; -1: none.
struct Path {
  Values sums;
  std::vector<int64_t> before;
};

Path strongest_path(const Values& scores, int64_t period) {
  const auto frames = static_cast<int64_t>(scores.size());
  const double faint = 0.01 * *std::ranges::max_element(scores);
  const auto nearest = static_cast<int64_t>(std::nearbyint(static_cast<double>(period) / 2));
  Path path = {scores, std::vector<int64_t>(scores.size(), -1)};
  bool is_silent = true;
  for (int64_t i = 0; i < frames; ++i) {
    double best = -std::numeric_limits<double>::infinity();
    int64_t from = -1;
    for (int64_t place = i - nearest; place >= std::max<int64_t>(0, i - 2 * period); --place) {
      const double off = std::log(static_cast<double>(i - place) / static_cast<double>(period));
      const double sum = path.sums[place] - kTightness * off * off;
      if (sum > best) best = sum, from = place;
    }
    if (from >= 0) path.sums[i] = scores[i] + best;
    is_silent = is_silent && scores[i] < faint;
    if (!is_silent) path.before[i] = from;
  }
  return path;
}

// The last frame whose sum is a peak, and not one of the lowest.
int64_t last_beat(const Values& sums) {
  const auto frames = static_cast<int64_t>(sums.size());
  std::vector<int64_t> tops;
  for (int64_t i = 1; i < frames; ++i) {
    if (sums[i] > sums[i - 1] && (i + 1 == frames || sums[i] >= sums[i + 1])) tops.push_back(i);
  }
  Values heights;
  for (const int64_t top : tops) heights.push_back(sums[top]);
  std::ranges::sort(heights);
  const size_t n = heights.size();
  const double median = n == 0 ? 0 : (heights[(n - 1) / 2] + heights[n / 2]) / 2;
  for (auto top = tops.rbegin(); top != tops.rend(); ++top) {
    if (sums[*top] >= 0.5 * median) return *top;
  }
  return frames - 1;
}

// Without the beats at both ends that hardly any onset is near.
std::vector<int64_t> trimmed(std::vector<int64_t> beats, const Values& scores) {
  constexpr double kWindow[] = {0, 0.5, 1, 0.5, 0};
  const auto count = static_cast<int64_t>(beats.size());
  double squares = 0;
  for (int64_t i = 0; i < count + 2; ++i) {
    double smooth = 0;
    for (int64_t k = 0; k < 5; ++k) {
      const int64_t beat = i + 2 - k;
      if (0 <= beat && beat < count) smooth += kWindow[k] * scores[beats[beat]];
    }
    squares += smooth * smooth / static_cast<double>(count + 2);
  }
  const double least = 0.5 * std::sqrt(squares);
  const auto is_loud = [&](double score) { return score > least; };
  const auto first = std::ranges::find_if(scores, is_loud) - scores.begin();
  const auto last = scores.rend() - std::find_if(scores.rbegin(), scores.rend(), is_loud) - 1;
  std::erase_if(beats, [&](int64_t beat) { return beat < first || beat > last; });
  return beats;
}

}  // namespace

double tempo(const at::Tensor& strength, double start) {
  constexpr double kSeconds = 8, kFastest = 320;
  const auto window = static_cast<int64_t>(kSeconds * kFramesASecond);
  const at::Tensor heard = around(strength, window) * at::hann_window(window, doubles());
  const at::Tensor powers = at::fft_rfft(heard, 2 * window).abs().square();
  const at::Tensor repeats = at::fft_irfft(powers, 2 * window).slice(1, 0, window);
  const at::Tensor highest = repeats.abs().amax(1, /*keepdim=*/true);
  const at::Tensor scale =
      at::where(highest < std::numeric_limits<float>::min(), at::ones({}, doubles()), highest);
  const Values mean = values_of((repeats / scale).mean(0));
  double best = -std::numeric_limits<double>::infinity(), found = start;
  for (int64_t lag = 1; lag < window; ++lag) {
    const double bpm = 60 * kFramesASecond / static_cast<double>(lag), off = std::log2(bpm / start);
    const double score = std::log1p(1e6 * mean[lag]) - 0.5 * off * off;
    if (bpm < kFastest && score > best) best = score, found = bpm;
  }
  return found;
}

std::vector<int64_t> peaks(const at::Tensor& strength) {
  constexpr int64_t kBefore = 4, kBehind = 5, kWait = 1;  // frames of the mean; between two peaks
  constexpr double kAbove = 0.07;
  const at::Tensor raised = strength - strength.min();
  const Values x = values_of(raised / (raised.max() + std::numeric_limits<float>::min()));
  const auto frames = static_cast<int64_t>(x.size());
  std::vector<int64_t> found;
  if (std::ranges::none_of(x, [](double value) { return value > 0; })) return found;
  for (int64_t i = 0; i < frames;) {
    const bool is_top = i == 0 || x[i] >= x[i - 1];
    double mean = 0;
    const int64_t first = std::max<int64_t>(0, i - kBefore), end = std::min(i + kBehind, frames);
    for (int64_t k = first; k < end; ++k) mean += x[k] / static_cast<double>(end - first);
    const bool is_peak = is_top && x[i] >= mean + kAbove;
    if (is_peak) found.push_back(i);
    i += is_peak ? kWait + 1 : 1;
  }
  return found;
}

std::vector<int64_t> beats(const at::Tensor& strength, double start) {
  const Values onsets = values_of(strength);
  if (std::ranges::none_of(onsets, [](double value) { return value > 0; })) return {};
  const auto period =
      static_cast<int64_t>(std::nearbyint(60 * kFramesASecond / tempo(strength, start)));
  const Values scores = local_scores(onsets, period);
  const Path path = strongest_path(scores, period);
  std::vector<int64_t> found;
  for (int64_t beat = last_beat(path.sums); beat >= 0; beat = path.before[beat])
    found.push_back(beat);
  std::ranges::reverse(found);
  return trimmed(std::move(found), scores);
}

}  // namespace wan::music
