#include "formats/zip.h"

#include <algorithm>

#include "formats/escape.h"

namespace atelier::formats {
namespace {

constexpr uint64_t kEndBytes = 22, kMaxComment = 65535, kLocatorBytes = 20, kEnd64Bytes = 56;
constexpr uint64_t kCentralBytes = 46, kLocalBytes = 30;
constexpr uint64_t kMaxDirectoryBytes = 100'000'000;
constexpr uint16_t kEncrypted = 1, kExtra64 = 1;
constexpr const char* kAgain = "the file is damaged or cut short, download it again";

// Little-endian numbers of bytes that are all there.
uint64_t number(std::string_view bytes, size_t at, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

[[noreturn]] void damaged(const char* tag, const std::string& message) {
  throw ParseError(tag, message, kAgain);
}

struct Directory {
  uint64_t begin = 0, bytes = 0, entries = 0;
};

// What stands behind the directory says where it is; in front of it, for large archives, once more
// with 8 bytes a number.
Directory find_directory(uint64_t file_size, const ReadBytes& read) {
  const uint64_t tail_bytes = std::min(file_size, kEndBytes + kMaxComment + kLocatorBytes);
  const uint64_t tail_begin = file_size - tail_bytes;
  const std::string tail = read(tail_begin, tail_bytes);
  size_t end = std::string::npos;
  for (size_t at = tail.rfind("PK\x05\x06"); at != std::string::npos;
       at = at == 0 ? std::string::npos : tail.rfind("PK\x05\x06", at - 1)) {
    if (tail.size() - at >= kEndBytes && number(tail, at + 20, 2) == tail.size() - at - kEndBytes) {
      end = at;
      break;
    }
  }
  if (end == std::string::npos) damaged("ZIP_END", "the end of the zip archive is missing");
  if (number(tail, end + 4, 2) != 0 && number(tail, end + 4, 2) != 0xFFFF)
    damaged("ZIP_END", "the zip archive is a part of several");
  Directory directory = {number(tail, end + 16, 4), number(tail, end + 12, 4),
                         number(tail, end + 10, 2)};
  uint64_t limit = tail_begin + end;
  if (end >= kLocatorBytes && tail.compare(end - kLocatorBytes, 4, "PK\x06\x07") == 0) {
    const uint64_t at = number(tail, end - kLocatorBytes + 8, 8);
    if (at > file_size || file_size - at < kEnd64Bytes)
      damaged("ZIP_END", "the zip archive's second end lies behind the file");
    const std::string end64 = read(at, kEnd64Bytes);
    if (!end64.starts_with("PK\x06\x06"))
      damaged("ZIP_END", "the zip archive's second end is missing");
    directory = {number(end64, 48, 8), number(end64, 40, 8), number(end64, 32, 8)};
    limit = at;
  }
  if (directory.begin > limit || directory.bytes > limit - directory.begin ||
      directory.bytes > kMaxDirectoryBytes || directory.entries > directory.bytes / kCentralBytes)
    damaged("ZIP_DIRECTORY", "the zip archive's list of " + std::to_string(directory.entries) +
                                 " entries does not fit the file");
  return directory;
}

// Replaces numbers that stand for "see below" by those of 8 bytes in an entry's extra fields.
void read_extra(std::string_view extra, uint64_t& full, uint64_t& packed, uint64_t& header) {
  constexpr uint64_t kElsewhere = 0xFFFFFFFF;
  while (extra.size() >= 4) {
    const uint64_t kind = number(extra, 0, 2), bytes = number(extra, 2, 2);
    if (bytes > extra.size() - 4) return;
    std::string_view field = extra.substr(4, bytes);
    for (uint64_t* value : {&full, &packed, &header}) {
      if (kind != kExtra64 || *value != kElsewhere || field.size() < 8) continue;
      *value = number(field, 0, 8);
      field.remove_prefix(8);
    }
    extra.remove_prefix(4 + bytes);
  }
}

}  // namespace

std::map<std::string, ZipEntry, std::less<>> read_zip_directory(uint64_t file_size,
                                                                const ReadBytes& read) {
  const Directory directory = find_directory(file_size, read);
  const std::string text = read(directory.begin, directory.bytes);
  std::string_view rest = text;
  std::map<std::string, ZipEntry, std::less<>> entries;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (rest.size() < kCentralBytes || !rest.starts_with("PK\x01\x02"))
      damaged("ZIP_DIRECTORY", "entry " + std::to_string(i + 1) + " of the zip archive is missing");
    const uint64_t name_bytes = number(rest, 28, 2), extra_bytes = number(rest, 30, 2),
                   comment_bytes = number(rest, 32, 2);
    if (rest.size() - kCentralBytes < name_bytes + extra_bytes + comment_bytes)
      damaged("ZIP_DIRECTORY",
              "entry " + std::to_string(i + 1) + " of the zip archive is cut short");
    const std::string name(rest.substr(kCentralBytes, name_bytes));
    uint64_t packed = number(rest, 20, 4), full = number(rest, 24, 4), header = number(rest, 42, 4);
    read_extra(rest.substr(kCentralBytes + name_bytes, extra_bytes), full, packed, header);
    const bool is_encrypted = (number(rest, 8, 2) & kEncrypted) != 0;
    const bool is_stored = number(rest, 10, 2) == 0 && packed == full && !is_encrypted;
    if (!entries.emplace(name, ZipEntry{header, packed, is_stored}).second)
      throw ParseError("ZIP_DUPLICATE", "entry " + quote_and_escape(name) + ": is there twice",
                       "the file is ambiguous, get it from its source again");
    rest.remove_prefix(kCentralBytes + name_bytes + extra_bytes + comment_bytes);
  }
  return entries;
}

uint64_t find_stored_bytes(const std::string& name, const ZipEntry& entry, uint64_t file_size,
                           const ReadBytes& read) {
  const std::string quoted = "entry " + quote_and_escape(name);
  if (!entry.is_stored)
    throw ParseError("ZIP_COMPRESSED", quoted + ": is compressed or encrypted",
                     "save the file again with torch.save(), which compresses nothing");
  if (entry.header > file_size || file_size - entry.header < kLocalBytes)
    damaged("ZIP_ENTRY", quoted + ": lies behind the end of the file");
  const std::string fixed = read(entry.header, kLocalBytes);
  const uint64_t name_bytes = fixed.starts_with("PK\x03\x04") ? number(fixed, 26, 2) : UINT64_MAX;
  const uint64_t after = file_size - entry.header - kLocalBytes;
  if (name_bytes != name.size() || name_bytes > after ||
      read(entry.header + kLocalBytes, name_bytes) != name)
    damaged("ZIP_ENTRY", quoted + ": another one stands in its place");
  const uint64_t skipped = name_bytes + number(fixed, 28, 2);
  if (skipped > after || entry.bytes > after - skipped)
    damaged("ZIP_ENTRY", quoted + ": its " + std::to_string(entry.bytes) + " bytes leave the file");
  return entry.header + kLocalBytes + skipped;
}

}  // namespace atelier::formats
