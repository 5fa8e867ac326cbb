// How many frames a clip may have.
#pragma once

#include <cstdint>
#include <string>

#include "atelier/model.h"

#include "host/report/problems.h"

namespace atelier::inputs {

// Says what is wrong with making or learning `frames` frames at a time; `place` begins the message.
void check_frames(int64_t frames, const LatentSpec& spec, const std::string& place,
                  report::Problems& problems);

}  // namespace atelier::inputs
