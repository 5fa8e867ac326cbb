#include "host/media/video_library.h"

#include <cstring>
#include <dlfcn.h>
#include <optional>
#include <variant>

#include "atelier/error.h"
#include "atelier/plugin.h"

namespace atelier::media {
namespace {

constexpr const char* kPackages =
    "install FFmpeg's packages with tools/setup and build again; pictures need no FFmpeg";

// A null pointer and what is wrong, or the library.
std::variant<const VideoLibrary*, Error> open() {
  std::error_code failure;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", failure);
  const std::filesystem::path path =
      (program.parent_path() / ".." / "lib" / "libatelier_video.so").lexically_normal();
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Error(ErrorCode::kEnvironment,
                 std::string("videos and sounds cannot be read or written: ") + dlerror(),
                 kPackages, "VIDEO_LIBRARY");
  using Door = const VideoLibrary* (*)() noexcept;
  const auto door = reinterpret_cast<Door>(dlsym(library, "atelier_video"));
  const VideoLibrary* found = door == nullptr ? nullptr : door();
  if (found == nullptr || std::strcmp(found->abi, ATELIER_ABI " video=" ATELIER_VIDEO_HASH) != 0)
    return Error(ErrorCode::kEnvironment, path.string() + ": is of another build than the program",
                 "build and install both together", "VIDEO_LIBRARY");
  return found;
}

}  // namespace

const VideoLibrary& video_library() {
  static const std::variant<const VideoLibrary*, Error> library = open();
  if (const auto* error = std::get_if<Error>(&library)) throw Error(*error);
  return *std::get<const VideoLibrary*>(library);
}

}  // namespace atelier::media
