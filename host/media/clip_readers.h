// Clips that need no FFmpeg: animations, folders of images, single images.
#pragma once

#include "host/media/clip.h"

namespace atelier::media {

// The images of a folder, natural order (9 before 10); other files are none of them.
std::vector<std::filesystem::path> frames_in(const std::filesystem::path& folder);

// Throw Error as open_clip().
std::unique_ptr<ClipReader> open_folder(const std::filesystem::path& folder,
                                        const ClipLimits& limits);
std::unique_ptr<ClipReader> open_still(const std::filesystem::path& path, const ClipLimits& limits);
std::unique_ptr<ClipReader> open_animation(const std::filesystem::path& path,
                                           const ClipLimits& limits);

}  // namespace atelier::media
