// Which frames of a clip are seen where it is played at another rate.
#pragma once

#include <cstdint>
#include <vector>

#include "host/media/clip.h"

namespace atelier::media {

// Numbers of the frames that are seen where a clip is played at `fps` frames per second: of each
// moment the nearest one, of two that are equally near the later. Where a file rounds its times to
// milliseconds, a difference of 1.5 ms counts as none. They ascend; one may come twice.
// At a rate of 0, and of a clip without a rate, all its frames; else a million at most.
std::vector<int64_t> frames_at_rate(const ClipInfo& clip, double fps);

}  // namespace atelier::media
