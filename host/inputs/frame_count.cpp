#include "host/inputs/frame_count.h"

namespace atelier::inputs {

void check_frames(int64_t frames, const LatentSpec& spec, const std::string& place,
                  report::Problems& problems) {
  constexpr int64_t kMost = 65'536;
  const std::string value = place + ": " + std::to_string(frames);
  const int64_t step = spec.temporal_stride;
  if (frames < 1) {
    problems.add(value + " is below 1");
  } else if (frames > kMost) {
    problems.add(value + " is above " + std::to_string(kMost));
  } else if (frames > 1 && !spec.takes_clips) {
    problems.add(value + ": this family makes single images", "leave it out, or use 1",
                 ErrorCode::kUnsupported);
  } else if ((frames - 1) % step != 0) {
    const int64_t below = (frames - 1) / step * step + 1;
    problems.add(value + " is not one more than a multiple of " + std::to_string(step),
                 "use " + std::to_string(below) + " or " + std::to_string(below + step));
  }
}

}  // namespace atelier::inputs
