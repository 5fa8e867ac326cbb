// The files of images and clips: which name each one gets, and whether it can be written there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/media/clip_writer.h"
#include "host/order/settings.h"
#include "host/report/problems.h"

namespace atelier::order {

// The file of each image: a pattern such as "out_%03d.png" counts from 0; without one, several
// images become out_0.png, out_1.png, …
std::vector<std::string> output_paths(const std::string& output, int64_t num_images);

// The files of an image's frames: `path` itself where there is one, else out_0000.png, …
std::vector<std::string> frame_paths(const std::string& path, int64_t num_frames);

// All that settings write; frames that are left to the model count as one. A clip is one file, or,
// as PNG, one for each frame; a pattern then counts the frames if there is one clip.
std::vector<std::string> written_files(const Settings& settings);

// Whether an image of that name is written as JPEG: .jpg, .jpeg.
bool is_jpeg(const std::string& path);

// Makes the folders of these files that are not there, and returns their names. Throws
// Error{kEnvironment}.
std::vector<std::string> make_folders(const std::vector<std::string>& paths);

// Puts a number before the extension: "out.png" and 3 give "out_3.png".
std::string with_number(const std::string& path, uint64_t number);

// The output's name and folder, whether no folder is where a file goes, and whether its format
// holds what is made and can be written. What is left to the model is not looked at; where it says
// no rate either, check_rate() tells it.
void check_output(const Settings& settings, const Origin& place, report::Problems& problems);

// Whether a clip's rate is known, and `format` holds it.
void check_rate(const Settings& settings, const media::ClipFormat& format, const Origin& place,
                report::Problems& problems);

}  // namespace atelier::order
