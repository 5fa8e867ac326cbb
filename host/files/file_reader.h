// One safetensors file: its header, checked, and its bytes on request.
#pragma once

#include <cstdint>
#include <string>

#include "atelier/error.h"

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

// Reads a whole small file. Throws as FileReader, and Error{kInvalidArgument} when it is longer
// than `max_bytes`.
std::string read_text_file(const std::string& path, uint64_t max_bytes = 100'000'000);

// "FILE:byte 12: message" of an error of formats/, with its hint and tag.
Error at_file(const std::string& path, const formats::ParseError& error, ErrorCode code);

// A path as it stands in messages: escaped, and quoted only where it has to be.
std::string display_path(const std::string& path);

}  // namespace atelier::files
