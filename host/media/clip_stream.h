// The file of a clip that is being written.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace atelier::media {

// All throw Error{kEnvironment}, with what the system said.
class ClipStream {
 public:
  explicit ClipStream(const std::filesystem::path& path);
  ClipStream(const ClipStream&) = delete;
  ClipStream& operator=(const ClipStream&) = delete;

  void write(std::string_view bytes);
  // Over what was written at that place.
  void overwrite(int64_t begin, std::string_view bytes);
  void finish();

 private:
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

// When the frame of that number, from 0, is shown, in the format's ticks.
int64_t ticks_of(int64_t frame, double fps, int64_t ticks_per_second);

class ClipWriter;
struct ClipSettings;
std::unique_ptr<ClipWriter> create_gif(const std::filesystem::path& path, const ClipSettings&);
std::unique_ptr<ClipWriter> create_webp(const std::filesystem::path& path, const ClipSettings&);

}  // namespace atelier::media
