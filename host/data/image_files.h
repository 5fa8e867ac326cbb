// The images and clips of a dataset, looked at on all cores.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/inputs/image_file.h"

namespace atelier::data {

using ImageFiles = std::map<std::string, inputs::ImageFile, std::less<>>;

// `kinds`: of the inputs that read the files; see inputs::check_file().
ImageFiles check_files(const std::map<std::string, InputKind>& kinds, bool decode_all);

// Files that hold the same bytes as one before them in `paths`, which they name. Only files of
// equal length are read.
std::map<std::string, std::string> find_copies(const std::vector<std::string>& paths,
                                               const ImageFiles& files);

}  // namespace atelier::data
