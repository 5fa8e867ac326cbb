// What files of images and clips say in words.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace atelier::media {

// Keywords and values, UTF-8, in file order.
using Text = std::vector<std::pair<std::string, std::string>>;

// One comment, for formats that hold no more: a line of JSON with a member for each keyword, in
// ASCII. Empty for no text.
std::string to_comment(const Text& text);

// What to_comment() made a comment of; another program's comment has the keyword "comment".
Text from_comment(std::string_view comment);

// Returns the text of a PNG, JPEG, WebP or GIF file; other images have none that is read.
// Throws Error as probe_image().
Text read_text(const std::filesystem::path& path);

}  // namespace atelier::media
