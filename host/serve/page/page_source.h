// The page as the build has put it together, see embed.cmake.
#pragma once

#include <string_view>

namespace atelier::serve {

extern const std::string_view kPage;                    // HTML, with its style and script in it
extern const std::string_view kStyleHash, kScriptHash;  // "sha256-…", for a Content-Security-Policy

}  // namespace atelier::serve
