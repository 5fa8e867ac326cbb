// Which semitones are heard: the constant-Q transform, and what chroma energy normalised statistics
// make of it.
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "music_parts.h"

namespace wan::music {
namespace {

constexpr int64_t kOctaves = 7, kSemitones = 12, kBinsASemitone = 3,
                  kBins = kSemitones * kBinsASemitone;  // of an octave
constexpr double kLowest = 32.70319566257483;           // C1, in Hz
constexpr double kTiny = 1.17549435e-38;                // below it a sum is not divided by

// By how much a parabola through each bin and its neighbours is highest beside the bin, [F, T].
at::Tensor peak_shifts(const at::Tensor& x, const at::Tensor& below, const at::Tensor& above) {
  const at::Tensor a = above + below - 2 * x, b = (above - below) / 2;
  return at::where(b.abs() >= a.abs(), at::zeros({}, doubles()), -b / a);
}

// How far, in bins of a semitone's third, the tones of a sound lie beside equal temperament: the
// fullest hundredth among its louder peaks.
double tuning(const at::Tensor& sound_N) {
  constexpr int64_t kWindow = 2048, kSteps = 100;
  constexpr double kLow = 150, kHigh = 4000, kQuiet = 0.1, kDeepestA = 27.5;
  const at::Tensor S = spectrum(sound_N, kWindow);
  const int64_t inner = S.size(0) - 2;
  const at::Tensor bins = at::arange(1, inner + 1, doubles()).unsqueeze(1);
  const at::Tensor hertz = bins * (kToldRate / kWindow);
  const at::Tensor loud = S * (S > kQuiet * S.amax(0));
  const at::Tensor x = S.narrow(0, 1, inner), below = S.narrow(0, 0, inner),
                   above = S.narrow(0, 2, inner);
  const at::Tensor is_peak = loud.narrow(0, 1, inner).gt(loud.narrow(0, 0, inner)) &
                             loud.narrow(0, 1, inner).ge(loud.narrow(0, 2, inner)) &
                             hertz.ge(kLow) & hertz.lt(kHigh);
  const at::Tensor shifts = peak_shifts(x, below, above);
  const at::Tensor pitches = ((bins + shifts) * (kToldRate / kWindow)).masked_select(is_peak);
  if (pitches.numel() == 0) return 0;
  const at::Tensor heights = (x + (above - below) / 4 * shifts).masked_select(is_peak);
  const at::Tensor sorted = std::get<0>(heights.sort());
  const int64_t n = sorted.size(0);
  const at::Tensor median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
  const at::Tensor octaves = (pitches.masked_select(heights >= median) / kDeepestA).log2();
  const at::Tensor beside = (octaves * kBins).remainder(1.0);
  const at::Tensor steps = at::where(beside >= 0.5, beside - 1, beside).histc(kSteps, -0.5, 0.5);
  return -0.5 + static_cast<double>(steps.argmax().item<int64_t>()) / kSteps;
}

// The filters of the highest octave in a spectrum of `window` bins, and how many samples each has
// at the told rate: those of lower octaves are the same at lower rates.
struct Filters {
  at::Tensor spectra;  // complex [kBins, window / 2 + 1]
  at::Tensor lengths;  // [kBins]
  int64_t window;
};

// Leaves out what adds least to each filter's spectrum, together a hundredth of it.
at::Tensor without_least(const at::Tensor& spectra) {
  const at::Tensor sizes = spectra.abs();
  const at::Tensor sorted = std::get<0>(sizes.sort(1));
  const at::Tensor shares = sorted.cumsum(1) / sizes.sum(1, /*keepdim=*/true);
  const at::Tensor first = shares.lt(0.01).sum(1, /*keepdim=*/true);
  return spectra * sizes.ge(sorted.gather(1, first));
}

Filters highest_filters(double lowest) {
  const double step = std::exp2(2.0 / kBins), quality = (step + 1) / (step - 1);
  Filters filters;
  const at::Tensor numbers = at::arange(kBins, doubles()) / kBins + (kOctaves - 1);
  const at::Tensor hertz = at::exp2(numbers) * lowest;
  filters.lengths = quality * kToldRate / hertz;
  filters.window =
      static_cast<int64_t>(std::exp2(std::ceil(std::log2(filters.lengths.max().item<double>()))));
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < kBins; ++i) {
    const double length = filters.lengths[i].item<double>();
    const double begin = std::floor(-length / 2), end = std::floor(length / 2);
    const auto count = static_cast<int64_t>(std::ceil(end - begin));
    const at::Tensor angles = (at::arange(count, doubles()) + begin) *
                              (2 * std::numbers::pi / kToldRate * hertz[i].item<double>());
    const at::Tensor sides = at::hann_window(count, doubles());
    const int64_t left = (filters.window - count) / 2;
    rows.push_back(at::constant_pad_nd(at::polar(sides / sides.sum(), angles),
                                       {left, filters.window - count - left}));
  }
  const at::Tensor spectra = at::fft_fft(at::stack(rows)).slice(1, 0, filters.window / 2 + 1);
  const at::Tensor scales = filters.lengths / static_cast<double>(filters.window);
  filters.spectra = without_least(spectra * scales.unsqueeze(1));
  return filters;
}

// Magnitudes of all octaves' bins, the highest octave first: [kOctaves, kBins, frames].
at::Tensor constant_q(at::Tensor sound_N) {
  const Filters filters = highest_filters(kLowest * std::exp2(tuning(sound_N) / kBins));
  const at::Tensor flat = at::ones({filters.window}, doubles());
  std::vector<at::Tensor> octaves;
  int64_t frames = INT64_MAX;
  for (int64_t i = 0; i < kOctaves; ++i) {
    const at::Tensor bins =
        at::stft(sound_N, filters.window, kMusicHop >> i, filters.window, flat, /*center=*/true,
                 /*pad_mode=*/"constant", /*normalized=*/false, /*onesided=*/true,
                 /*return_complex=*/true);
    // Both the sound and the filters of half the rate are louder by the root of two.
    const at::Tensor lengths = filters.lengths * std::exp2(i);
    octaves.push_back(at::matmul(filters.spectra, bins).abs() * std::exp2(0.5 * i) /
                      lengths.sqrt().unsqueeze(1));
    frames = std::min(frames, bins.size(1));
    if (i + 1 < kOctaves) sound_N = resampled(sound_N, 1, 2) * std::numbers::sqrt2;
  }
  for (at::Tensor& octave : octaves) octave = octave.slice(1, 0, frames);
  return at::stack(octaves);
}

// Columns divided by their sizes, but for those that are nothing.
at::Tensor divided(const at::Tensor& x, const at::Tensor& sizes) {
  return x / at::where(sizes < kTiny, at::ones({}, doubles()), sizes);
}

}  // namespace

at::Tensor semitones(const at::Tensor& sound_N) {
  constexpr int64_t kSmooth = 43;
  const at::Tensor bins = constant_q(sound_N).sum(0);
  // A semitone is its own bin and the two beside it.
  const at::Tensor heard = bins.roll(1, 0).unflatten(0, {kSemitones, kBinsASemitone}).sum(1);
  const at::Tensor shares = divided(heard, heard.sum(0));
  at::Tensor steps = at::zeros_like(shares);
  for (const double step : {0.4, 0.2, 0.1, 0.05}) steps += shares.gt(step) * 0.25;
  const at::Tensor window = at::hann_window(kSmooth, /*periodic=*/false, doubles());
  const at::Tensor smooth =
      at::conv1d(steps.unsqueeze(1), (window / window.sum()).view({1, 1, -1}), {}, 1, kSmooth / 2)
          .squeeze(1);
  return divided(smooth, smooth.square().sum(0).sqrt());
}

}  // namespace wan::music
