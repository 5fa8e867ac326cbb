// Checkpoints of torch.save(): a zip archive with one pickle, and the bytes of tensors beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "formats/zip.h"

namespace atelier::formats {

struct PthTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  // In elements, one for each axis; empty: the elements lie in order.
  std::vector<int64_t> strides;
  // From the start of the file: its elements, and all others between the first and the last.
  uint64_t begin = 0, end = 0;
};

struct PthIndex {
  std::vector<PthTensor> tensors;  // by name; several may share bytes
  bool is_big_endian = false;
  uint64_t pickle_end = 0;  // from the start of the file
};

inline constexpr uint64_t kMaxPickleBytes = 64'000'000;
// A tensor's name, here and in safetensors files: what looks for names takes time for each byte.
inline constexpr uint64_t kMaxNameBytes = 65'536;

// Finds the tensors of an archive. The pickle is read as data: what it would call is held against
// a list of names that stand for tensors, and nothing is run. A dict that holds nothing but another
// one as "state_dict", "module" or "model_state" is that one.
//
// Throws ParseError with tags of read_zip_directory() and find_stored_bytes(), and PTH_ARCHIVE,
// PTH_SCRIPT, PTH_PICKLE, PTH_OPCODE, PTH_GLOBAL, PTH_VALUES, PTH_TENSOR, PTH_STORAGE, PTH_DICT.
PthIndex read_pth(uint64_t file_size, const ReadBytes& read);

}  // namespace atelier::formats
