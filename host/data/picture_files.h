// The picture files of a dataset, looked at on all cores.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "host/inputs/picture_file.h"

namespace atelier::data {

using PictureFiles = std::map<std::string, inputs::PictureFile, std::less<>>;

// See inputs::check_picture.
PictureFiles check_pictures(const std::set<std::string>& paths, bool decode_all);

// Files that hold the same bytes as one before them in `paths`, which they name. Only files of
// equal length are read.
std::map<std::string, std::string> find_copies(const std::vector<std::string>& paths,
                                               const PictureFiles& files);

}  // namespace atelier::data
