// Makes PNG files with text.
#pragma once

#include <string>

#include "host/media/image.h"
#include "host/media/text.h"

namespace atelier::media {

// Returns the bytes of a PNG file. `text` becomes chunks: what is ASCII tEXt, the rest iTXt. With
// `alpha`, gray and of the same size, it has transparency, which is where that is not white.
// Keywords are Latin-1, 1 to 79 characters. Throws Error{kInvalidArgument} for a keyword or size
// that the format does not allow.
std::string encode_png(const Image& image, const Text& text = {}, const Image* alpha = nullptr);

}  // namespace atelier::media
