// Many pieces of files into memory at once, converted on the way.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace atelier::files {

// A run of elements in a file, and where they go.
struct ReadRun {
  int file = 0;
  uint64_t begin = 0;  // byte in the file
  int64_t count = 0;   // elements
  at::ScalarType from = at::kFloat;
  at::ScalarType to = at::kFloat;
  void* target = nullptr;  // room for `count` elements of `to`; the memory outlives the call
};

// Reads all runs with a few threads. Beside the targets it needs a few MiB. `progress`, where
// given, is called with the bytes read so far, a few times a second and from the calling thread.
// Throws Error{kDataLoss} when a file's length is not the one in `sizes`, or it ends too early.
void read_runs(const std::vector<std::string>& files, const std::vector<uint64_t>& sizes,
               std::vector<ReadRun> runs,
               const std::function<void(int64_t bytes_done)>& progress = {});

// Copies `count` elements of type `from` to elements of type `to`; floating types only where they
// differ. float8_e4m3fn targets saturate. Runs on the calling thread alone.
void convert_elements(const void* source, at::ScalarType from, void* target, at::ScalarType to,
                      int64_t count);

}  // namespace atelier::files
