#include "formats/elf_note.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formats/escape.h"

namespace atelier::formats {
namespace {

constexpr std::string_view kNoteName{"atelier\0", 8};
constexpr uint32_t kNoteType = 1;
constexpr uint64_t kMaxNoteBytes = 4096;
// Ours is a few hundred bytes in a segment of little else; what is larger, or comes after many, is
// not read.
constexpr uint64_t kMaxSegmentBytes = 1 << 20;
constexpr size_t kMaxNoteSegments = 64;

// Field offsets and values of the ELF-64 format.
constexpr uint64_t kHeaderSize = 64;
constexpr uint64_t kProgramHeaderSize = 56;
constexpr uint64_t kSectionHeaderSize = 64;
constexpr uint16_t kTypeShared = 3;
constexpr uint32_t kSegmentLoad = 1;
constexpr uint32_t kSegmentNote = 4;
constexpr uint32_t kSectionNote = 7;
constexpr uint32_t kSectionNoBits = 8;
#if defined(__x86_64__)
constexpr uint16_t kMachine = 62;
#elif defined(__aarch64__)
constexpr uint16_t kMachine = 183;
#else
constexpr uint16_t kMachine = 0;
#endif

[[noreturn]] void damaged(const std::string& message, uint64_t byte) {
  throw ParseError("ELF_DAMAGED", message, "copy or build the plugin again", byte);
}

// A file whose every read is checked.
class Image {
 public:
  explicit Image(std::string_view bytes) : bytes_(bytes) {}

  std::string_view slice(uint64_t at, uint64_t size, const std::string& what) const {
    if (at > bytes_.size() || size > bytes_.size() - at) {
      damaged(what + " ends at byte " + std::to_string(at) + " + " + std::to_string(size) +
                  ", the file has " + std::to_string(bytes_.size()),
              at);
    }
    return bytes_.substr(at, size);
  }
  uint64_t integer(uint64_t at, int num_bytes, const std::string& what) const {
    const std::string_view field = slice(at, static_cast<uint64_t>(num_bytes), what);
    uint64_t value = 0;
    for (int i = num_bytes; i-- > 0;) {
      value = (value << 8) | static_cast<unsigned char>(field[static_cast<size_t>(i)]);
    }
    return value;
  }

 private:
  std::string_view bytes_;
};

struct Range {
  uint64_t offset;
  uint64_t size;
  uint64_t alignment;
};

uint64_t align_up(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// The three strings of a description: abi, family and version, each ended by a NUL byte.
PluginNote read_description(std::string_view text, uint64_t byte) {
  const auto refuse = [&](const std::string& message) {
    throw ParseError("ELF_NOTE", message, "build the plugin again with the SDK", byte);
  };
  std::array<std::string, 3> parts;
  for (std::string& part : parts) {
    const size_t end = text.find('\0');
    if (end == std::string_view::npos) refuse("the plugin's note does not hold three strings");
    part = text.substr(0, end);
    text.remove_prefix(end + 1);
  }
  if (!text.empty()) refuse("the plugin's note goes on after its three strings");
  const std::string& family = parts[1];
  const bool is_name = !family.empty() && std::all_of(family.begin(), family.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  if (!is_name) {
    refuse("the family's name in the plugin's note is " + quote_and_escape(family) +
           ", it must be made of a-z, 0-9 and _");
  }
  return {parts[0], parts[1], parts[2]};
}

// Walks over the notes of one segment or section.
void read_notes(const Image& image, const Range& range, std::optional<PluginNote>& found) {
  // Notes are aligned to 4 bytes, or to 8 where the segment says so.
  const uint64_t alignment = range.alignment == 8 ? 8 : 4;
  const uint64_t end = range.offset + range.size;
  for (uint64_t at = range.offset; end - at >= 12;) {
    const uint64_t name_size = image.integer(at, 4, "a note");
    const uint64_t description_size = image.integer(at + 4, 4, "a note");
    const uint64_t type = image.integer(at + 8, 4, "a note");
    const uint64_t name_at = at + 12;
    const uint64_t description_at = at + align_up(12 + name_size, alignment);
    const uint64_t note_end = description_at + description_size;
    if (note_end > end) damaged("a note reaches over the end of its segment", at);
    if (type == kNoteType && image.slice(name_at, name_size, "a note's name") == kNoteName) {
      if (description_size > kMaxNoteBytes) {
        throw ParseError("ELF_NOTE", "the plugin's note is longer than 4096 bytes", {}, at);
      }
      PluginNote note = read_description(
          image.slice(description_at, description_size, "the plugin's note"), description_at);
      if (found && (found->abi != note.abi || found->family != note.family ||
                    found->version != note.version)) {
        throw ParseError("ELF_NOTE", "the library holds two different plugin notes",
                         "link one plugin into one library", at);
      }
      found = std::move(note);
    }
    at += align_up(note_end - at, alignment);
    if (at > end) break;
  }
}

[[noreturn]] void wrong_kind(const std::string& message) {
  throw ParseError("ELF_KIND", message, "a plugin is a .so built for this machine", 0);
}

// Refuses what is no shared library for this machine.
void check_kind(std::string_view file) {
  constexpr std::string_view kMagic = "\x7F\x45LF";
  if (!file.starts_with(kMagic)) {
    if (kMagic.starts_with(file))
      damaged("the ELF header ends after " + std::to_string(file.size()) + " bytes", 0);
    wrong_kind("is not a shared library");
  }
  const Image image(file);
  image.slice(0, kHeaderSize, "the ELF header");
  if (file[4] != 2 || file[5] != 1 || file[6] != 1)
    wrong_kind("is not a 64-bit little-endian ELF file");
  if (image.integer(16, 2, "the ELF header") != kTypeShared)
    wrong_kind("is an ELF file but not a shared library");
  const uint64_t machine = image.integer(18, 2, "the ELF header");
  if (kMachine != 0 && machine != kMachine)
    wrong_kind("is built for ELF machine " + std::to_string(machine) + ", this one is " +
               std::to_string(kMachine));
}

// Adds the notes that program segments hold, and checks that all segments are in the file.
void find_segments(const Image& image, std::vector<Range>& notes) {
  const uint64_t table = image.integer(32, 8, "the ELF header");
  const uint64_t size = image.integer(54, 2, "the ELF header");
  const uint64_t count = image.integer(56, 2, "the ELF header");
  if (count == 0) damaged("there are no program headers", 56);
  if (size != kProgramHeaderSize) damaged("program headers have a wrong size", 54);
  image.slice(table, count * kProgramHeaderSize, "the program header table");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = table + i * kProgramHeaderSize;
    const std::string what = "program segment " + std::to_string(i);
    const uint64_t type = image.integer(at, 4, what);
    if (type != kSegmentLoad && type != kSegmentNote) continue;
    const Range range = {image.integer(at + 8, 8, what), image.integer(at + 32, 8, what),
                         image.integer(at + 48, 8, what)};
    image.slice(range.offset, range.size, what);
    if (type == kSegmentNote) notes.push_back(range);
  }
}

// Checks the sections. Their headers come last in the file: when they are whole, nothing was cut
// off.
void find_sections(const Image& image, std::vector<Range>& notes) {
  const uint64_t table = image.integer(40, 8, "the ELF header");
  const uint64_t size = image.integer(58, 2, "the ELF header");
  const uint64_t count = image.integer(60, 2, "the ELF header");
  if (count == 0) return;
  if (size != kSectionHeaderSize) damaged("section headers have a wrong size", 58);
  image.slice(table, count * kSectionHeaderSize, "the section header table");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = table + i * kSectionHeaderSize;
    const std::string what = "section " + std::to_string(i);
    const uint64_t type = image.integer(at + 4, 4, what);
    if (type == kSectionNoBits || type == 0) continue;
    const Range range = {image.integer(at + 24, 8, what), image.integer(at + 32, 8, what),
                         image.integer(at + 48, 8, what)};
    image.slice(range.offset, range.size, what);
    if (type == kSectionNote) notes.push_back(range);
  }
}

}  // namespace

std::optional<PluginNote> read_plugin_note(std::string_view file) {
  check_kind(file);
  const Image image(file);
  std::vector<Range> notes;
  find_segments(image, notes);
  find_sections(image, notes);
  std::optional<PluginNote> found;
  if (notes.size() > kMaxNoteSegments) notes.resize(kMaxNoteSegments);
  for (const Range& range : notes) {
    if (range.size <= kMaxSegmentBytes) read_notes(image, range, found);
  }
  return found;
}

}  // namespace atelier::formats
