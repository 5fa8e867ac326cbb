#include "formats/git_lfs.h"

namespace atelier::formats {

std::optional<ParseError> find_git_lfs_pointer(std::string_view bytes,
                                               const std::string& tag_prefix) {
  if (!bytes.starts_with("version https://git-lfs")) return std::nullopt;
  return ParseError(tag_prefix + "GIT_LFS", "is a git-lfs pointer, not the file itself",
                    "run `git lfs pull` where it was cloned, or download the file", 0);
}

}  // namespace atelier::formats
