// Forms with files, as browsers and programs send them (RFC 7578).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parse_error.h"

namespace atelier::formats {

struct MultipartLimits {
  size_t max_parts = 256;
  size_t max_header_bytes = 8192;  // of one part
};

struct MultipartPart {
  std::string name;
  std::optional<std::string> file_name = {};  // as the client says; never a path of this machine
  std::string content_type = {};              // as it was written; empty: none was
  std::string_view bytes = {};                // of the body that was parsed
};

// The parts of `body` in their order, names may come more than once. `content_type` is the header
// field of the whole, which has the boundary.
//
// Throws ParseError: MULTIPART_TYPE where it is no "multipart/form-data" with a boundary,
// MULTIPART_FORM where a part is malformed, has no name or another transfer encoding than its bytes
// as they are, where the end is missing or something follows it; MULTIPART_TOO_LARGE where a limit
// is passed; HTTP_FIELD as parse_media_type().
std::vector<MultipartPart> parse_multipart(std::string_view content_type, std::string_view body,
                                           const MultipartLimits& limits = {});

}  // namespace atelier::formats
