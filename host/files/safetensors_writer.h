// Writes safetensors files that are there whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "atelier/conditioning.h"

#include "formats/safetensors.h"

namespace atelier::files {

// What a file was given.
struct WrittenFile {
  uint64_t bytes = 0;
  std::string hash;  // as hash_file
};

// Writes what `fill` gives under `path`: aside in the same folder, flushed to the disk, then
// renamed. The file's permissions are the usual ones (0666 without the umask); a symbolic link is
// followed. Throws Error{kEnvironment} naming the file and what the system said; the old file, if
// any, is then still there.
WrittenFile write_file(
    const std::string& path,
    const std::function<void(const std::function<void(const void*, size_t)>&)>& fill);
WrittenFile write_file(const std::string& path, std::string_view bytes);

// Writes `entries` (begin and end are ignored); `tensor` gives each one when its turn comes, on any
// device, in the dtype and shape of its entry, so that one at a time is in memory. Throws
// Error{kEnvironment} as write_file, and Error{kInvalidArgument} for names that the format does not
// allow.
WrittenFile write_safetensors(const std::string& path, std::vector<formats::TensorEntry> entries,
                              const std::map<std::string, std::string>& metadata,
                              const std::function<at::Tensor(const std::string& name)>& tensor);

WrittenFile write_safetensors(const std::string& path, const NamedTensors& tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace atelier::files
