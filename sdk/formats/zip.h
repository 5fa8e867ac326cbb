// Zip archives, of which entries that are stored as they are can be read in place.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "formats/parse_error.h"

namespace atelier::formats {

// `bytes` bytes at `begin`; what is asked for lies inside the file.
using ReadBytes = std::function<std::string(uint64_t begin, uint64_t bytes)>;

struct ZipEntry {
  uint64_t header = 0;  // where its own header begins in the file
  uint64_t bytes = 0;   // as they are in the archive
  bool is_stored = true;
};

// The entries of an archive by name. Names are looked up and never taken for paths. Throws
// ParseError: ZIP_END, ZIP_DIRECTORY, ZIP_ENTRY, ZIP_DUPLICATE.
std::map<std::string, ZipEntry, std::less<>> read_zip_directory(uint64_t file_size,
                                                                const ReadBytes& read);

// Where the bytes of an entry begin. Throws ParseError ZIP_ENTRY when its own header is another's
// or the bytes leave the file, and ZIP_COMPRESSED.
uint64_t find_stored_bytes(const std::string& name, const ZipEntry& entry, uint64_t file_size,
                           const ReadBytes& read);

}  // namespace atelier::formats
