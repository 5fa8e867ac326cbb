// Reads the headers of many picture files on all cores.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "atelier/error.h"

#include "host/media/decode.h"

namespace atelier::data {

struct PictureFile {
  media::PictureInfo info;
  int64_t bytes = 0;
  int64_t modified_ns = 0;     // since 1970
  std::optional<Error> error;  // what is wrong with the file; the rest is then not filled in
};

using PictureFiles = std::map<std::string, PictureFile, std::less<>>;

// Says of each file whether it can be read: it exists, is a regular file, has a good header and
// ends as its format does. Files that end otherwise, and with `decode_all` every one, are decoded.
PictureFiles check_pictures(const std::set<std::string>& paths, bool decode_all);

// Files that hold the same bytes as one before them in `paths`, which they name. Only files of
// equal length are read.
std::map<std::string, std::string> find_copies(const std::vector<std::string>& paths,
                                               const PictureFiles& files);

// The whole file. Throws Error naming it; named pipes and the like are refused.
std::vector<uint8_t> read_picture_file(const std::string& path);

}  // namespace atelier::data
