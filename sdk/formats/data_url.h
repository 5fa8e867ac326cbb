// Files that stand in a text.
#pragma once

#include <string>
#include <string_view>

#include "formats/parse_error.h"

namespace atelier::formats {

struct DataUrl {
  std::string content_type;  // "image/png" as it was written; may be empty
  std::string bytes;
};

// Whether it says that it is one; its scheme may be in any case.
bool is_data_url(std::string_view text);

// "data:image/png;base64,…". Throws ParseError DATA_URL where it is none, or not in base64.
DataUrl parse_data_url(std::string_view text);

}  // namespace atelier::formats
