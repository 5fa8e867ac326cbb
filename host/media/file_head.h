// What a media file begins with, by which it is told.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace atelier::media {

// The first bytes of a file, enough to tell any kind; fewer where it is shorter. Throws Error:
// kNotFound and kEnvironment when it cannot be read.
std::string read_head(const std::filesystem::path& path);

std::span<const uint8_t> bytes_of(const std::string& text);
bool has_text(std::string_view head, size_t at, std::string_view text);

// What text that stands in a media file's place is: "a web page", "text"; empty: it is no text.
std::string_view name_of_text(std::string_view head);

// Whether git-lfs left a pointer where it did not fetch the file.
bool is_lfs_pointer(std::string_view head);

}  // namespace atelier::media
