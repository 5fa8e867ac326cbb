// Makes PNG files with text, and reads the text back.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "host/media/image.h"

namespace atelier::media {

// Keywords and values of text chunks, in file order. Keywords are Latin-1, 1 to 79 characters.
using PngText = std::vector<std::pair<std::string, std::string>>;

// Returns the bytes of a PNG file. `text` is UTF-8: what is ASCII becomes tEXt, the rest iTXt.
// Throws Error{kInvalidArgument} for a keyword or size that the format does not allow.
std::string encode_png(const Image& image, const PngText& text = {});

// Returns every text chunk of a PNG file, values as UTF-8; tEXt is Latin-1 in the file.
// Throws Error: kNotFound, kEnvironment, kUnsupported when it is no PNG, kDataLoss for damage.
PngText png_text(const std::filesystem::path& path);

}  // namespace atelier::media
