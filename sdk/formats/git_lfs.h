// The small text that git-lfs leaves where a large file belongs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "formats/parse_error.h"

namespace atelier::formats {

// Returns what to say of bytes that are such a text, under the code `tag_prefix` + "GIT_LFS".
std::optional<ParseError> find_git_lfs_pointer(std::string_view bytes,
                                               const std::string& tag_prefix);

}  // namespace atelier::formats
