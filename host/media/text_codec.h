// What text.cpp needs of the formats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/media/text.h"

namespace atelier::media {

// A file that is no longer than an image can be. Throws Error: kNotFound, kEnvironment, and
// kInvalidArgument for a folder.
std::vector<uint8_t> read_file(const std::filesystem::path& path);

// Every text chunk. Throws DecodeError.
Text png_text(std::span<const uint8_t> bytes);

// The user's comment that a JPEG file's EXIF data hold; empty when they hold none. Throws
// DecodeError.
std::string jpeg_comment(std::span<const uint8_t> bytes);

// The user's comment in ASCII that a TIFF block of EXIF data holds; empty when it holds none.
std::string exif_comment(std::span<const uint8_t> tiff);
// A block with this comment alone.
std::string exif_of(std::string_view comment);

}  // namespace atelier::media
