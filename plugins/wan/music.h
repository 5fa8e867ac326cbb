// What is heard in music, as Wan-Dancer was trained to read it.
#pragma once

#include <ATen/core/Tensor.h>

namespace wan::music {

inline constexpr int64_t kSampleRate = 22'050;  // of the sound that features are made of

// Rows that features_of() gives of so many samples: 30 a second, and one.
int64_t rows_of(int64_t samples);

// The features that librosa 0.11 gives, side by side: strength of onsets, 20 mel-frequency
// cepstral coefficients, 12 chroma values (CENS), and ones at onsets and at beats. All but the
// tempo that beats begin from are made of the sound at 15360 samples a second, told to be at 22050.
//
// sound_N: float32 on the CPU, one channel at kSampleRate. Returns [rows_of(N), 35].
at::Tensor features_of(const at::Tensor& sound_N);

}  // namespace wan::music
