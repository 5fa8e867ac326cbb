// Statistics of the pixels in [0, 1] that CLIP looks at, by channel.
#pragma once

namespace atelier::parts {

inline constexpr double kClipMean[] = {0.48145466, 0.4578275, 0.40821073};
inline constexpr double kClipStd[] = {0.26862954, 0.26130258, 0.27577711};

}  // namespace atelier::parts
