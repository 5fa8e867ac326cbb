// One file of tensors: its header, checked, and its bytes on request.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "atelier/error.h"

#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace atelier::files {

// An open file that is read at given places, and not mapped: a mapped file that shrinks ends the
// process. Safe to use from several threads.
class FileReader {
 public:
  // Throws Error{kNotFound}, {kInvalidArgument} for what is no name, {kEnvironment} for the rest.
  explicit FileReader(std::string path);
  ~FileReader();
  FileReader(FileReader&& other) noexcept;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  // Fills `bytes` bytes at `to` with what stands at `begin`.
  // Throws Error{kDataLoss} when the file ends before that, and Error{kEnvironment} when reading
  // fails.
  void read(void* to, uint64_t begin, uint64_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Reads the header of a safetensors file and checks it against the file's length.
// Throws Error{kInvalidArgument} for another kind of file, which it names, Error{kDataLoss} for a
// file that breaks a rule of the format, and Error{kUnsupported} for a packing of weights that is
// known and not supported.
formats::SafetensorsHeader read_header(const FileReader& file);

// A tensor of a file, wherever its format keeps the numbers.
struct FileTensor {
  std::string name;
  formats::DType dtype = formats::DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements; empty: the elements lie in order
  uint64_t begin = 0, end = 0;   // from the start of the file
  // How codes of a GGUF file are stored, which `dtype` does not say.
  std::optional<formats::GgufType> codes = {};
};
struct FileTensors {
  std::vector<FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t header_end = 0;  // what tells of the tensors stands before it
  bool is_big_endian = false;
};

// Reads what a file says of its tensors: a safetensors file, a GGUF file, or an archive of
// torch.save(), of which nothing is run. Throws as read_header().
FileTensors read_tensors(const FileReader& file);

// Reads a whole small file. Throws as FileReader, and Error{kInvalidArgument} when it is longer
// than `max_bytes`.
std::string read_text_file(const std::string& path, uint64_t max_bytes = 100'000'000);

// "FILE:byte 12: message" of an error of formats/, with its hint and tag.
Error at_file(const std::string& path, const formats::ParseError& error, ErrorCode code);

// A path as it stands in messages: escaped, and quoted only where it has to be.
std::string display_path(const std::string& path);

}  // namespace atelier::files
