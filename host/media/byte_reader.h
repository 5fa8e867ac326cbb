// Little-endian numbers out of a file's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "host/media/codec.h"

namespace atelier::media {

// Throws DecodeError where the bytes end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  size_t size() const { return bytes_.size(); }
  void require(size_t at, size_t count) const {
    if (at > bytes_.size() || bytes_.size() - at < count)
      throw DecodeError("the file ends before the image does");
  }
  uint8_t u8(size_t at) const {
    require(at, 1);
    return bytes_[at];
  }
  uint16_t u16(size_t at) const {
    require(at, 2);
    return static_cast<uint16_t>(bytes_[at] | bytes_[at + 1] << 8);
  }
  uint32_t u32(size_t at) const { return u16(at) | static_cast<uint32_t>(u16(at + 2)) << 16; }
  int32_t i32(size_t at) const { return static_cast<int32_t>(u32(at)); }

 private:
  std::span<const uint8_t> bytes_;
};

}  // namespace atelier::media
