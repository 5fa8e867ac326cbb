// A file as memory, without a copy: how weights rest on the CPU when they need no conversion.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace atelier::files {

// Mapped privately: what is written to the memory stays in this process. A file that becomes
// shorter while it is mapped ends the process; see report_lost_pages(). Safe to use from several
// threads.
class MappedFile : public std::enable_shared_from_this<MappedFile> {
 public:
  // Throws Error{kDataLoss} when the file has another length than `size`, and Error{kEnvironment}
  // when it cannot be mapped.
  static std::shared_ptr<const MappedFile> open(const std::string& path, uint64_t size);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Brings bytes into memory, so that their first use does not wait for the disk.
  // Throws Error{kDataLoss} when the file became shorter.
  void populate(uint64_t begin, uint64_t bytes) const;

  // The elements from `begin` on, which is a multiple of the element's size. The tensor keeps the
  // file mapped.
  at::Tensor tensor(uint64_t begin, at::IntArrayRef sizes, at::ScalarType dtype) const;

 private:
  MappedFile(std::string path, char* data, uint64_t size);

  std::string path_;
  char* data_;
  uint64_t size_;
};

// Where a page of a mapped file is gone, the process ends with one line on stderr that names the
// file, and exit code 3. Call it once, in main().
void report_lost_pages();

}  // namespace atelier::files
