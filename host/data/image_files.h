// The image files of a dataset, looked at on all cores.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "host/inputs/image_file.h"

namespace atelier::data {

using ImageFiles = std::map<std::string, inputs::ImageFile, std::less<>>;

// See inputs::check_image.
ImageFiles check_images(const std::set<std::string>& paths, bool decode_all);

// Files that hold the same bytes as one before them in `paths`, which they name. Only files of
// equal length are read.
std::map<std::string, std::string> find_copies(const std::vector<std::string>& paths,
                                               const ImageFiles& files);

}  // namespace atelier::data
