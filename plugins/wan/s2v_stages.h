// Speech to video of Wan 2.2: how sound, poses and what a piece follows on are encoded, and which
// pieces a clip is made in.
#pragma once

#include "atelier/model.h"
#include "atelier/model_family.h"

namespace wan {

inline constexpr double kSpeechFps = 16.0;  // frames per second that it was trained on

// Whether a part is a denoiser that hears.
bool hears(const atelier::Detection& part);

}  // namespace wan
