// The files of images: which name each one gets, and whether it can be written there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/generate/settings.h"
#include "host/report/problems.h"

namespace atelier::generate {

// The file of each image: a pattern such as "out_%03d.png" counts from 0; without one, several
// images become out_0.png, out_1.png, …
std::vector<std::string> output_paths(const std::string& output, int64_t num_images);

// The files of an image's frames: `path` itself where there is one, else out_0000.png, …
std::vector<std::string> frame_paths(const std::string& path, int64_t num_frames);

// All that settings write; frames that are left to the model count as one.
std::vector<std::string> written_files(const Settings& settings);

// Puts a number before the extension: "out.png" and 3 give "out_3.png".
std::string with_number(const std::string& path, uint64_t number);

// The output's name and folder; `place` names it in messages.
void check_output_path(const std::string& output, const std::string& place,
                       report::Problems& problems);

}  // namespace atelier::generate
