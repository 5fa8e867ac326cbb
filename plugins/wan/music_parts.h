// What features of music are made of. All tensors are float64 on the CPU; rows of time are called
// frames here, kMusicHop samples apart.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace wan::music {

inline constexpr int64_t kMusicHop = 512;
// Samples a second that every step takes a sound to have.
inline constexpr double kToldRate = 22050;

inline at::TensorOptions doubles() {
  return at::TensorOptions().dtype(at::kDouble);
}

// A sound at up / down times its rate, [N] to [ceil(N up / down)]. What lies above the lower rate's
// 0.913th part of half of it fades out.
at::Tensor resampled(const at::Tensor& sound_N, int64_t up, int64_t down);

// Magnitudes of windows around each frame, [window / 2 + 1, frames].
at::Tensor spectrum(const at::Tensor& sound_N, int64_t window);

// Powers of 128 bands of mels in decibels, at most 80 below the loudest: [128, frames].
at::Tensor mel_decibels(const at::Tensor& sound_N);

// How much louder the bands of each frame are than those of the one before, [frames].
at::Tensor onset_strength(const at::Tensor& decibels);

// How much each of 12 semitones is heard around each frame (CENS), [12, frames].
at::Tensor semitones(const at::Tensor& sound_N);

// Beats a minute of the strength of onsets, near `start`.
double tempo(const at::Tensor& strength, double start);
// Numbers of the frames that are peaks of it, and beats of a tempo near `start`.
std::vector<int64_t> peaks(const at::Tensor& strength);
std::vector<int64_t> beats(const at::Tensor& strength, double start);

}  // namespace wan::music
