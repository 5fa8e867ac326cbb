// Which files a folder holds, and what their names say of them.
#pragma once

#include <filesystem>
#include <set>
#include <string>

namespace atelier::data {

// Paths of all files below `folder`, relative to it and sorted. Hidden ones are left out, and so
// are folders of runs, whose previews are no data; linked folders are not followed. Throws
// Error{kNotFound} or {kEnvironment}.
std::set<std::string> files_below(const std::filesystem::path& folder);

// Whether a name ends as those of images do; also of formats that cannot be read here: such an
// image is told of, not passed over.
bool is_image_name(const std::filesystem::path& name);
bool is_clip_name(const std::filesystem::path& name);

}  // namespace atelier::data
