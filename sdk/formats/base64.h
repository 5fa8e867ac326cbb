// Bytes as text of 64 letters.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace atelier::formats {

// Base64 of RFC 4648, section 4: the standard alphabet, padded with "=".
std::string encode_base64(std::string_view bytes);

// nullopt where it is no such text. Padding may be absent; line breaks may not be there.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace atelier::formats
