#include <optional>

#include "host/media/codec.h"
#include "host/media/text_codec.h"

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

// Where the entry of that tag and type lies, 0 where there is none; `directory` is where its
// directory does.
size_t find_entry(const TiffReader& reader, size_t directory, uint32_t tag, uint32_t type) {
  const uint32_t num_entries = reader.read(directory, 2);
  for (uint32_t i = 0; i < num_entries; ++i) {
    const size_t entry = directory + 2 + size_t{12} * i;
    if (reader.read(entry, 2) == tag && reader.read(entry + 2, 2) == type) return entry;
  }
  return 0;
}

// The first directory's place; nullopt where the block is none.
std::optional<size_t> first_directory(const TiffReader& reader) {
  const auto& tiff = reader.bytes;
  const bool has_order =
      tiff.size() >= 8 && tiff[0] == tiff[1] && (tiff[0] == 'M' || tiff[0] == 'I');
  if (!has_order || reader.read(2, 2) != 42) return std::nullopt;
  return reader.read(4, 4);
}

TiffReader reader_of(std::span<const uint8_t> tiff) {
  return {tiff, !tiff.empty() && tiff[0] == 'M'};
}

constexpr uint32_t kShort = 3, kLong = 4, kUndefined = 7;
constexpr uint32_t kOrientationTag = 0x0112, kExifTag = 0x8769, kUserCommentTag = 0x9286;
constexpr std::string_view kAscii("ASCII\0\0\0", 8);  // what begins a comment

}  // namespace

int exif_orientation(std::span<const uint8_t> tiff) {
  const TiffReader reader = reader_of(tiff);
  const std::optional<size_t> directory = first_directory(reader);
  const size_t entry = directory ? find_entry(reader, *directory, kOrientationTag, kShort) : 0;
  const uint32_t value = entry == 0 ? 1 : reader.read(entry + 8, 2);
  return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
}

std::string exif_comment(std::span<const uint8_t> tiff) {
  const TiffReader reader = reader_of(tiff);
  const std::optional<size_t> directory = first_directory(reader);
  const size_t exif = directory ? find_entry(reader, *directory, kExifTag, kLong) : 0;
  if (exif == 0) return "";
  const size_t entry = find_entry(reader, reader.read(exif + 8, 4), kUserCommentTag, kUndefined);
  if (entry == 0) return "";
  const size_t count = reader.read(entry + 4, 4), begin = reader.read(entry + 8, 4);
  if (begin > tiff.size() || tiff.size() - begin < count) return "";
  const std::string_view value(reinterpret_cast<const char*>(tiff.data()) + begin, count);
  return value.starts_with(kAscii) ? std::string(value.substr(kAscii.size())) : "";
}

std::string exif_of(std::string_view comment) {
  std::string block("II*\0", 4);
  const auto add = [&](uint32_t value, int size) {
    for (int i = 0; i < size; ++i) block += static_cast<char>(value >> 8 * i);
  };
  const auto add_directory = [&](uint32_t tag, uint32_t type, size_t count, uint32_t value) {
    add(1, 2), add(tag, 2), add(type, 2);
    add(static_cast<uint32_t>(count), 4), add(value, 4);
    add(0, 4);  // no directory behind it
  };
  constexpr uint32_t kHeader = 8, kDirectory = 18;
  add(kHeader, 4);
  add_directory(kExifTag, kLong, 1, kHeader + kDirectory);
  add_directory(kUserCommentTag, kUndefined, kAscii.size() + comment.size(),
                kHeader + 2 * kDirectory);
  return block.append(kAscii).append(comment);
}

}  // namespace atelier::media
