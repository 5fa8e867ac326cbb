// The files of a dataset, looked at on all cores.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "host/inputs/image_file.h"

namespace atelier::data {

using ImageFiles = std::map<std::string, inputs::ImageFile, std::less<>>;
using FileKinds = std::map<std::string, InputKind>;

// By path. A file that is seen by one input and heard by another is in both.
struct DataFiles {
  ImageFiles seen, heard;

  // What the inputs of that kind read there.
  const inputs::ImageFile& of(InputKind kind, const std::string& path) const;
};

// `kinds`: of the inputs that read the files; see inputs::check_file().
ImageFiles check_files(const FileKinds& kinds, bool decode_all);

// Files that hold the same bytes as one before them in `paths`, which they name. Only files of
// equal length are read.
std::map<std::string, std::string> find_copies(const std::vector<std::string>& paths,
                                               const ImageFiles& files);

}  // namespace atelier::data
