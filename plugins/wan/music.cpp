#include "music.h"

#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "music_parts.h"

namespace wan::music {
namespace {

constexpr int64_t kUp = 512, kDown = 735;  // from 22050 to 15360 samples a second
constexpr int64_t kWindow = 2048, kMels = 128, kCoefficients = 20;
constexpr double kTempo = 120;  // that the search for one begins from

// Frequencies of `count` evenly spaced mels, up to half of the told rate: straight below 1000 Hz, a
// logarithm above.
at::Tensor mel_frequencies(int64_t count) {
  const double step = 200.0 / 3, knee = 1000.0 / step, log_step = std::log(6.4) / 27;
  const double top = knee + std::log(kToldRate / 2 / 1000.0) / log_step;
  const at::Tensor mels = at::linspace(0, top, count, doubles());
  return at::where(mels < knee, mels * step, at::exp((mels - knee) * log_step) * 1000);
}

// Triangles over the bins of a spectrum, each of the same area: [kMels, kWindow / 2 + 1].
at::Tensor mel_filters() {
  const at::Tensor edges = mel_frequencies(kMels + 2);
  const at::Tensor bins = at::linspace(0, kToldRate / 2, kWindow / 2 + 1, doubles());
  const at::Tensor ramps = edges.unsqueeze(1) - bins, widths = edges.diff().unsqueeze(1);
  const at::Tensor rising = -ramps.narrow(0, 0, kMels) / widths.narrow(0, 0, kMels);
  const at::Tensor falling = ramps.narrow(0, 2, kMels) / widths.narrow(0, 1, kMels);
  const at::Tensor area = (edges.narrow(0, 2, kMels) - edges.narrow(0, 0, kMels)).unsqueeze(1);
  return at::minimum(rising, falling).clamp_min(0) * 2 / area;
}

// Cosines of the bands, the first kCoefficients of them: [frames, kCoefficients].
at::Tensor coefficients(const at::Tensor& decibels) {
  const at::Tensor k = at::arange(kCoefficients, doubles()).unsqueeze(1);
  const at::Tensor places = at::arange(kMels, doubles()) + 0.5;
  at::Tensor waves = at::cos(k * places * (std::numbers::pi / kMels)) * std::sqrt(2.0 / kMels);
  waves[0] *= std::sqrt(0.5);
  return at::matmul(waves, decibels).t();
}

at::Tensor ones_at(const std::vector<int64_t>& numbers, int64_t frames) {
  at::Tensor ones = at::zeros({frames, 1}, doubles());
  for (const int64_t number : numbers) ones[number] = 1;
  return ones;
}

}  // namespace

at::Tensor resampled(const at::Tensor& sound_N, int64_t up, int64_t down) {
  constexpr double kBeta = 12.8, kCut = 0.9565;  // of the Kaiser window; of half the lower rate
  constexpr int64_t kZeros = 94;                 // half the kernel, in samples of the lower rate
  const double rate = std::min(1.0, static_cast<double>(up) / static_cast<double>(down));
  const auto half = static_cast<int64_t>(std::ceil(kZeros / rate));
  // Kernel p makes samples p, p + up, …: those lie p down / up behind where the kernel begins.
  const at::Tensor shifts =
      at::arange(up, doubles()).unsqueeze(1) * static_cast<double>(down) / static_cast<double>(up);
  const at::Tensor places = at::arange(-half, half + down, doubles()) - shifts;
  const at::Tensor inside = (1 - (places / static_cast<double>(half)).square()).clamp_min(0);
  const at::Tensor window =
      at::special_i0(kBeta * inside.sqrt()) / at::special_i0(at::full({}, kBeta, doubles()));
  const at::Tensor kernels = (at::sinc(places * rate * kCut) * window * rate * kCut)
                                 .where(inside > 0, at::zeros({}, doubles()));
  const int64_t N = sound_N.size(0), wanted = (N * up + down - 1) / down;
  const at::Tensor padded =
      at::constant_pad_nd(sound_N.to(at::kDouble), {half, half + down + N % down}).view({1, 1, -1});
  return at::conv1d(padded, kernels.unsqueeze(1), {}, down)[0].t().reshape({-1}).slice(0, 0,
                                                                                       wanted);
}

at::Tensor spectrum(const at::Tensor& sound_N, int64_t window) {
  return at::stft(sound_N, window, kMusicHop, window, at::hann_window(window, doubles()),
                  /*center=*/true, /*pad_mode=*/"constant", /*normalized=*/false,
                  /*onesided=*/true, /*return_complex=*/true)
      .abs();
}

at::Tensor mel_decibels(const at::Tensor& sound_N) {
  constexpr double kFaintest = 1e-10, kDepth = 80;
  const at::Tensor powers = at::matmul(mel_filters(), spectrum(sound_N, kWindow).square());
  const at::Tensor decibels = powers.clamp_min(kFaintest).log10() * 10;
  return at::maximum(decibels, decibels.max() - kDepth);
}

at::Tensor onset_strength(const at::Tensor& decibels) {
  constexpr int64_t kLate = 1 + kWindow / (2 * kMusicHop);
  const at::Tensor rises = decibels.diff(1, 1).clamp_min(0).mean(0);
  return at::constant_pad_nd(rises, {kLate, 0}).slice(0, 0, decibels.size(1));
}

int64_t rows_of(int64_t samples) {
  return 1 + (samples * kUp + kDown - 1) / kDown / kMusicHop;
}

at::Tensor features_of(const at::Tensor& sound_N) {
  const at::Tensor sound = resampled(sound_N, kUp, kDown);
  const at::Tensor decibels = mel_decibels(sound);
  const at::Tensor strength = onset_strength(decibels);
  const int64_t frames = strength.size(0);
  const double start = tempo(onset_strength(mel_decibels(sound_N.to(at::kDouble))), kTempo);
  return at::cat({strength.unsqueeze(1), coefficients(decibels), semitones(sound).t(),
                  ones_at(peaks(strength), frames), ones_at(beats(strength, start), frames)},
                 1)
      .to(at::kFloat);
}

}  // namespace wan::music
