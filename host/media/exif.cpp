#include "host/media/codec.h"

namespace atelier::media {
namespace {

// Reads integers of either byte order; what lies outside the bytes reads as 0.
struct TiffReader {
  std::span<const uint8_t> bytes;
  bool is_big_endian;

  uint32_t read(size_t at, size_t size) const {
    if (at > bytes.size() || bytes.size() - at < size) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      const size_t place = is_big_endian ? i : size - 1 - i;
      value = value << 8 | bytes[at + place];
    }
    return value;
  }
};

}  // namespace

int exif_orientation(std::span<const uint8_t> tiff) {
  constexpr uint32_t kOrientationTag = 0x0112, kShort = 3;
  if (tiff.size() < 8) return 1;
  const TiffReader reader = {tiff, tiff[0] == 'M'};
  if (tiff[0] != tiff[1] || (tiff[0] != 'M' && tiff[0] != 'I') || reader.read(2, 2) != 42) return 1;
  const size_t directory = reader.read(4, 4);
  const uint32_t num_entries = reader.read(directory, 2);
  for (uint32_t i = 0; i < num_entries; ++i) {
    const size_t entry = directory + 2 + size_t{12} * i;
    if (reader.read(entry, 2) != kOrientationTag || reader.read(entry + 2, 2) != kShort) continue;
    const uint32_t value = reader.read(entry + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace atelier::media
