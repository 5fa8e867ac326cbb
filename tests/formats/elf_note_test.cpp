#include "formats/elf_note.h"

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "formats/expect_error.h"

namespace atelier::formats {
namespace {

std::string little(uint64_t value, int num_bytes) {
  std::string bytes;
  for (int i = 0; i < num_bytes; ++i, value >>= 8) bytes.push_back(static_cast<char>(value & 0xFF));
  return bytes;
}

std::string padded(std::string bytes, size_t alignment) {
  while (bytes.size() % alignment != 0) bytes.push_back('\0');
  return bytes;
}

std::string note(const std::string& name, uint32_t type, const std::string& description,
                 size_t alignment = 4) {
  const std::string head =
      little(name.size(), 4) + little(description.size(), 4) + little(type, 4) + name;
  return padded(padded(head, alignment) + description, alignment);
}

const std::string kName("atelier\0", 8);
const std::string kDescription(
    "sdk=0.1 torch=2\0fam_1\0"
    "0.3.1\0",
    28);

#if defined(__aarch64__)
constexpr uint64_t kMachine = 183;
#else
constexpr uint64_t kMachine = 62;
#endif

struct Layout {
  std::string notes;
  uint64_t alignment = 4;
  bool has_sections = false;  // the notes are found by a section as well
  bool has_segment = true;    // the notes are found by a program header
  uint64_t type = 3;          // shared library
  uint64_t machine = kMachine;
};

// A library of one loaded segment, which is the whole file, and its notes.
std::string library(const Layout& layout) {
  const uint64_t notes_at = 64 + 2 * 56;
  const uint64_t sections_at = notes_at + layout.notes.size();
  const uint64_t num_sections = layout.has_sections ? 2 : 0;
  std::string elf = std::string(
                        "\x7F"
                        "ELF\x02\x01\x01",
                        7) +
                    std::string(9, '\0');
  elf += little(layout.type, 2) + little(layout.machine, 2) + little(1, 4) + little(0, 8);
  elf += little(64, 8) + little(num_sections == 0 ? 0 : sections_at, 8) + little(0, 4);
  elf += little(64, 2) + little(56, 2) + little(2, 2) + little(64, 2) + little(num_sections, 2) +
         little(0, 2);
  const auto program = [&](uint64_t type, uint64_t at, uint64_t size, uint64_t alignment) {
    return little(type, 4) + little(4, 4) + little(at, 8) + little(at, 8) + little(at, 8) +
           little(size, 8) + little(size, 8) + little(alignment, 8);
  };
  elf += program(1, 0, sections_at, 4096);
  elf += program(layout.has_segment ? 4 : 6, notes_at, layout.notes.size(), layout.alignment);
  elf += layout.notes;
  if (layout.has_sections) {
    elf += std::string(64, '\0');
    elf += little(0, 4) + little(7, 4) + little(2, 8) + little(notes_at, 8) + little(notes_at, 8) +
           little(layout.notes.size(), 8) + little(0, 8) + little(layout.alignment, 8) +
           little(0, 8);
  }
  return elf;
}

std::string tag_of_note(std::string_view file) {
  return error_of([&] { read_plugin_note(file); }).tag;
}

}  // namespace

TEST_CASE("A plugin's note is found without opening the library", "[elf]") {
  const std::string build_id = note(std::string("GNU\0", 4), 3, "0123456789abcdef0123");
  const std::string ours = note(kName, 1, kDescription);
  for (const bool has_sections : {false, true}) {
    for (const std::string& notes :
         {ours, build_id + ours, ours + build_id, build_id + ours + build_id}) {
      const auto found = read_plugin_note(library({.notes = notes, .has_sections = has_sections}));
      REQUIRE(found.has_value());
      CHECK(found->abi == "sdk=0.1 torch=2");
      CHECK(found->family == "fam_1");
      CHECK(found->version == "0.3.1");
    }
  }
  // Found by the section alone, and in a segment that is aligned to 8 bytes.
  CHECK(read_plugin_note(library({.notes = ours, .has_sections = true, .has_segment = false})));
  const std::string wide =
      note(std::string("GNU\0", 4), 5, "0123456789ab", 8) + note(kName, 1, kDescription, 8);
  CHECK(read_plugin_note(library({.notes = wide, .alignment = 8})));
}

TEST_CASE("A library without the note is not a plugin", "[elf]") {
  const auto is_plugin = [](const std::string& notes) {
    return read_plugin_note(library({.notes = notes})).has_value();
  };
  CHECK_FALSE(is_plugin(""));
  CHECK_FALSE(is_plugin(note(std::string("GNU\0", 4), 1, kDescription)));
  CHECK_FALSE(is_plugin(note(kName, 2, kDescription)));
  CHECK_FALSE(is_plugin(note("atelier", 1, kDescription)));
  CHECK_FALSE(is_plugin(note("atelierX", 1, kDescription)));
  // Fewer bytes than a note's head are padding.
  CHECK_FALSE(is_plugin(std::string(11, '\0')));
}

TEST_CASE("What is not a shared library of this machine is refused", "[elf]") {
  const std::string good = library({.notes = note(kName, 1, kDescription)});
  CHECK(tag_of_note(good) == "accepted");
  CHECK(tag_of_note("") == "ELF_DAMAGED");
  CHECK(tag_of_note("#!/bin/sh\n") == "ELF_KIND");
  CHECK(tag_of_note("INPUT(libother.so)") == "ELF_KIND");
  CHECK(tag_of_note(library({.notes = "", .type = 2})) == "ELF_KIND");
  CHECK(tag_of_note(library({.notes = "", .type = 1})) == "ELF_KIND");
  CHECK(tag_of_note(library({.notes = "", .machine = 40})) == "ELF_KIND");
  std::string narrow = good;
  narrow[4] = 1;
  CHECK(tag_of_note(narrow) == "ELF_KIND");
  std::string big_endian = good;
  big_endian[5] = 2;
  CHECK(tag_of_note(big_endian) == "ELF_KIND");
}

TEST_CASE("A library that is cut short is refused at every byte", "[elf]") {
  for (const bool has_sections : {false, true}) {
    const std::string good =
        library({.notes = note(kName, 1, kDescription), .has_sections = has_sections});
    for (size_t i = 0; i < good.size(); ++i) {
      CAPTURE(i);
      CHECK(tag_of_note(std::string_view(good).substr(0, i)) == "ELF_DAMAGED");
    }
  }
}

TEST_CASE("Headers that point outside the file are refused", "[elf]") {
  const std::string good = library({.notes = note(kName, 1, kDescription), .has_sections = true});
  const auto with = [&](size_t at, int num_bytes, uint64_t value) {
    std::string bad = good;
    bad.replace(at, static_cast<size_t>(num_bytes), little(value, num_bytes));
    return tag_of_note(bad);
  };
  const size_t notes = 64 + 56;  // the program header of the notes
  for (const uint64_t value : {uint64_t{1} << 20, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 55}) {
    CHECK(with(32, 8, value) == "ELF_DAMAGED");          // program headers
    CHECK(with(40, 8, value) == "ELF_DAMAGED");          // section headers
    CHECK(with(notes + 8, 8, value) == "ELF_DAMAGED");   // offset
    CHECK(with(notes + 32, 8, value) == "ELF_DAMAGED");  // size
    CHECK(with(64 + 32, 8, value) == "ELF_DAMAGED");     // size of what is loaded
  }
  CHECK(with(54, 2, 32) == "ELF_DAMAGED");
  CHECK(with(56, 2, 0) == "ELF_DAMAGED");
  CHECK(with(56, 2, 0xFFFF) == "ELF_DAMAGED");
  CHECK(with(58, 2, 1) == "ELF_DAMAGED");
  CHECK(with(60, 2, 0xFFFF) == "ELF_DAMAGED");
  const size_t head = 64 + 2 * 56;
  CHECK(with(head, 4, 0xFFFFFFFF) == "ELF_DAMAGED");      // size of the note's name
  CHECK(with(head + 4, 4, 0xFFFFFFFF) == "ELF_DAMAGED");  // size of its description
}

TEST_CASE("A note of ours that cannot be read is refused", "[elf]") {
  const auto tag = [](const std::string& description) {
    return tag_of_note(library({.notes = note(kName, 1, description)}));
  };
  CHECK(tag(std::string("abi\0fam\0"
                        "1\0",
                        10)) == "accepted");
  CHECK(tag(std::string("abi\0fam\0", 8)) == "ELF_NOTE");
  CHECK(tag(std::string("abi\0fam\0"
                        "1",
                        9)) == "ELF_NOTE");
  CHECK(tag(std::string("abi\0fam\0"
                        "1\0x\0",
                        12)) == "ELF_NOTE");
  CHECK(tag(std::string("abi\0\0"
                        "1\0",
                        7)) == "ELF_NOTE");
  CHECK(tag(std::string("abi\0../f\0"
                        "1\0",
                        11)) == "ELF_NOTE");
  CHECK(tag(std::string("abi\0F\0"
                        "1\0",
                        8)) == "ELF_NOTE");
  CHECK(tag("") == "ELF_NOTE");
  CHECK(tag(std::string(4000, 'a') + std::string("\0fam\0"
                                                 "1\0",
                                                 7)) == "accepted");
  CHECK(tag(std::string(4090, 'a') + std::string("\0fam\0"
                                                 "1\0",
                                                 7)) == "ELF_NOTE");
  const std::string other(
      "abi\0other\0"
      "1\0",
      12);
  CHECK(tag_of_note(library({.notes = note(kName, 1, kDescription) + note(kName, 1, other)})) ==
        "ELF_NOTE");
}

TEST_CASE("Many note segments over a large file are read in little time", "[elf]") {
  const uint64_t count = 60000;
  std::string elf = library({.notes = ""}).substr(0, 64);
  elf.replace(56, 2, little(count, 2));
  const uint64_t size = 64 + count * 56;
  for (uint64_t i = 0; i < count; ++i) {
    elf += little(4, 4) + little(4, 4) + little(0, 8) + little(0, 16) + little(size, 8) +
           little(size, 8) + little(4, 8);
  }
  CHECK_FALSE(read_plugin_note(elf).has_value());
}

TEST_CASE("Random damage to a library does no more than throw", "[elf]") {
  std::mt19937 random(3);
  const std::string good = library({.notes = note(kName, 1, kDescription), .has_sections = true});
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (int j = 0; j < 3; ++j) bad[random() % bad.size()] = static_cast<char>(random());
    try {
      read_plugin_note(bad);
    } catch (const ParseError&) {
      ++refused;
    }
  }
  CHECK(refused > 5000);
}

}  // namespace atelier::formats
