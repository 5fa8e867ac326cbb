// What marks the folder of a run, for those that look through folders.
#pragma once

#include <string_view>

namespace atelier::files {

// A file that run::RunFolder keeps there.
inline constexpr std::string_view kRunMark = ".run";

}  // namespace atelier::files
